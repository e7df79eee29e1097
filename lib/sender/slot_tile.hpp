// Slots on a GPU: writes this rank's head, judges those of all ranks, and finishes what depends on the verdict. The host
// reads the verdict later.
#pragma once

#include <cstdint>

#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"
#include "sender/slot_kernel.hpp"

namespace dr {

// How many steps this rank did not complete, and the last of them. All heads of a step have what was known before it: what
// fails within it counts afterwards, whatever the order of its units.
struct step_counts {
  uint64_t step;
  uint32_t failures, failed;  // before `step`
  uint32_t now, now_failed;   // and after it

  DR_HD void enter(uint64_t next) {
    if (step == next) return;
    step = next;
    failures = now;
    failed = now_failed;
  }
  DR_HD void fail(uint64_t at) {
    enter(at);
    now = failures + 1;
    now_failed = static_cast<uint32_t>(at);
  }
};

// The verdict about a unit in a step. Behind it: the results of its frames' checks, the prefixes of all slots.
struct slot_report {
  uint32_t failed;    // no output was written
  uint32_t restored;  // what this rank sent is back in its residuals
  uint32_t foreign;   // 1 and the first rank with a frame of another step or of other tensors; 0: none
  uint32_t failures, last_failed, reserved;  // of this rank, after the step
};
static_assert(sizeof(slot_report) == 24);

// Slots for all ranks, or one for each. The owner of a range must know of a fault in any other, so with several slots each
// frame has the reason of the last one that could not be encoded, as on the CPU.
struct seal_slots {
  static constexpr const char* name = "seal_slots";
  static constexpr unsigned lanes = 64, grid_phases = 1;
  struct args {
    uint8_t* slots;            // [count]
    const dr_result* results;  // of the encodes, [count][frames]
    step_counts* counts;
    slot_report* report;
    uint64_t stride, tag, step;
    uint32_t count, frames;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    typename Block::template each<uint64_t> longest;
    typename Block::template each<uint32_t> bad;  // 1 and the last encode that failed; 0: none did
    b.phase([&](unsigned lane) {
      if (lane == 0) {
        a.counts->enter(a.step);
        a.report->restored = 0;
      }
      longest[lane] = 0;
      bad[lane] = 0;
      for (uint32_t slot = lane; slot < a.count; slot += lanes) {
        uint64_t size = prefix_size(words_a_frame * a.frames);
        for (uint32_t i = slot * a.frames; i < (slot + 1) * a.frames; ++i) {
          size += a.results[i].size;
          if (a.results[i].status) bad[lane] = i + 1;
        }
        if (size > longest[lane]) longest[lane] = size;
      }
    });
    slot_head head;
    head.tag = a.tag;
    head.longest = b.max(longest);
    const uint32_t last_bad = b.max(bad);
    b.phase([&](unsigned lane) {
      for (uint32_t slot = lane; slot < a.count; slot += lanes) seal(a, head, slot, last_bad);
    });
  }

 private:
  DR_HD static void seal(const args& a, slot_head head, uint32_t slot, uint32_t last_bad) {
    uint8_t* const at = a.slots + slot * a.stride;
    auto* const words = reinterpret_cast<uint64_t*>(at + sizeof head);
    const size_t n = words_a_frame * a.frames;
    head.failures = a.counts->failures;
    head.failed = a.counts->failed;
    for (uint32_t f = 0; f < a.frames; ++f) {
      const uint32_t own = slot * a.frames + f, i = a.count > 1 && last_bad ? last_bad - 1 : own;
      words[f] = a.results[own].size;
      write_reason(a.results[i], i / a.frames, i % a.frames, words + a.frames + uint64_t{words_a_frame - 1} * f);
    }
    head.check = check_of(head, words, n);
    std::memcpy(at, &head, sizeof head);
  }
};

// The gates of a frame's decode (merge/merge_tile.hpp), whose first word closes them.
struct slot_gate {
  uint32_t* gate;
  uint32_t* back;          // of the residuals
  const device_row* rows;  // [ranks][row_count]
  uint64_t at;             // the frame's place in a slot
  uint32_t row_count, reserved;

  // Whether the frame of a rank is sound.
  DR_HD bool is_whole(uint32_t rank) const {
    for (uint32_t i = 0; i < row_count; ++i)
      if (rows[uint64_t{rank} * row_count + i].fault.code != DR_OK) return false;
    return true;
  }
};
inline constexpr size_t gates_max = 64;

// After the checks of all frames. The gates of a unit close together.
struct settle_slots {
  static constexpr const char* name = "settle_slots";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const uint8_t* slots;  // of the ranks
    uint64_t stride;
    uint64_t tag, step;
    step_counts* counts;
    slot_report* report;
    uint64_t* prefixes;  // of all slots: a copy
    uint32_t ranks, own, frames;
    uint32_t returns;  // this rank's frames are among them: they go back to the residuals if the gates close
    slot_gate gate[gates_max];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    typename Block::template each<uint32_t> bad, foreign;
    b.phase([&](unsigned lane) {
      bad[lane] = 0;
      foreign[lane] = a.ranks;
      for (uint32_t f = lane; f < a.frames; f += lanes) bad[lane] |= *a.gate[f].gate != 0;
      for (uint32_t rank = lane; rank < a.ranks; rank += lanes) {
        bad[lane] |= !is_sound(a, rank);
        for (uint32_t f = 0; f < a.frames; ++f)
          if (!has_tag(a, rank, f) && rank < foreign[lane]) foreign[lane] = rank;
      }
      bad[lane] |= foreign[lane] < a.ranks;
    });
    const uint32_t failed = b.sum(bad) != 0, first = b.min(foreign);
    b.phase([&](unsigned lane) {
      for (uint32_t f = lane; f < a.frames; f += lanes) {
        *a.gate[f].gate = failed;
        *a.gate[f].back = !(failed && a.returns && a.gate[f].is_whole(a.own));
      }
      const uint64_t words = device_prefix(a.frames) / 8, all = words * a.ranks;
      for (uint64_t i = lane; i < all; i += lanes)
        a.prefixes[i] = reinterpret_cast<const uint64_t*>(a.slots + i / words * a.stride)[i % words];
      if (lane != 0) return;
      if (failed) a.counts->fail(a.step);
      a.report->restored = failed && a.returns;
      a.report->failed = failed;
      a.report->foreign = first < a.ranks ? first + 1 : 0;
      a.report->failures = a.counts->now;
      a.report->last_failed = a.counts->now_failed;
    });
  }

 private:
  DR_HD static slot_head head_of(const args& a, uint32_t rank) {
    slot_head head;
    std::memcpy(&head, a.slots + rank * a.stride, sizeof head);
    return head;
  }
  // A head that the host will accept, too: of this step, of a rank that completed the same steps, and encoded all of them.
  DR_HD static bool is_sound(const args& a, uint32_t rank) {
    const slot_head head = head_of(a, rank);
    const uint8_t* const words = a.slots + rank * a.stride + sizeof head;
    for (uint32_t f = 0; f < a.frames; ++f)
      if (has_reason(reinterpret_cast<const uint64_t*>(words) + a.frames + uint64_t{words_a_frame - 1} * f))
        return false;
    return head.check == check_of(head, words, words_a_frame * a.frames) && head.tag == a.tag && !head.flags &&
           !head.tensor && !head.reserved && head.failures == head_of(a, 0).failures;
  }
  // Frames and status frames of a sender have a tag.
  DR_HD static bool has_tag(const args& a, uint32_t rank, uint32_t f) {
    const uint8_t* const frame = a.slots + rank * a.stride + a.gate[f].at;
    uint64_t tag;
    std::memcpy(&tag, frame + tag_at, sizeof tag);
    return (frame[flags_at] & DR_FRAME_TAG) && tag == a.tag;
  }
  static constexpr uint32_t flags_at = 3, tag_at = 24;  // of a frame (container/frame_kernel.hpp)
};

// After the checks of frames that this rank sent: opens the way back to the residuals for those that are whole, unless they
// are back.
struct open_returns {
  static constexpr const char* name = "open_returns";
  static constexpr unsigned lanes = 64, grid_phases = 1;
  struct args {
    slot_report* report;
    uint32_t frames;
    uint32_t is_last;  // of the unit's launches
    slot_gate gate[gates_max];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t restored = b.template once<uint32_t>([&] { return a.report->restored; });
    b.phase([&](unsigned lane) {
      for (uint32_t f = lane; f < a.frames; f += lanes) *a.gate[f].back = restored || !a.gate[f].is_whole(0);
      if (lane == 0 && a.is_last) a.report->restored = 1;
    });
  }
};

// One step more that this rank did not complete, or counts from elsewhere.
struct set_counts {
  static constexpr const char* name = "set_counts";
  static constexpr unsigned lanes = 32, grid_phases = 1;
  struct args {
    step_counts* counts;
    uint64_t step;
    uint32_t fails;  // else the numbers are these:
    uint32_t failures, failed, reserved;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      if (a.fails)
        a.counts->fail(a.step);
      else
        *a.counts = {~uint64_t{0}, a.failures, a.failed, a.failures, a.failed};
    });
  }
};

// Rounds f32 sums to outputs. Of a unit that failed the outputs may become 0: an optimizer will use them before the host
// knows.
struct output_job {
  const float* sums;  // NULL: the output has them
  void* output;
  uint64_t elements;
  uint32_t first_tile, dtype;
};
inline constexpr uint32_t output_tile = 4096;

template <size_t N>
struct finish_outputs {
  static constexpr const char* name = "finish_outputs";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const slot_report* report;
    uint32_t zeros;  // if it failed
    uint32_t jobs, tiles, reserved;
    output_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t failed = a.report->failed;
    const output_job& j = job_of_tile(a, b.index());
    if (failed ? !a.zeros : !j.sums) return;
    const uint64_t first = uint64_t{b.index() - j.first_tile} * output_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t k = lane; k < output_tile && first + k < j.elements; k += lanes)
        store_bits(j.dtype, j.output, first + k, failed ? 0 : bits_of(j.dtype, j.sums[first + k]));
    });
  }
};

}  // namespace dr
