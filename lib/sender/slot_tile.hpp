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
  uint32_t failed;                 // no output was written
  uint32_t restored;               // what this rank sent is back in its residuals
  uint32_t foreign;                // 1 and the first rank with a frame of another step or of other tensors; 0: none
  uint32_t failures, last_failed;  // of this rank, after the step
  // Of gates that are not settled yet: one is closed; ~rank of the first with a frame of another step, or 0.
  uint32_t bad, late, reserved;
};
static_assert(sizeof(slot_report) == 32);

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
        a.report->restored = a.report->bad = a.report->late = 0;
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
      write_reason(a.results[i], i / a.frames, i % a.frames, words + reason_word(a.frames, f));
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

// Frames and status frames of a sender have a tag.
DR_HD inline bool has_tag(const uint8_t* frame, uint64_t expected) {
  constexpr uint32_t flags_at = 3, tag_at = 24;  // of a frame (container/frame_kernel.hpp)
  uint64_t tag;
  std::memcpy(&tag, frame + tag_at, sizeof tag);
  return (frame[flags_at] & DR_FRAME_TAG) && tag == expected;
}

// After the checks of all frames. The gates of a unit close together.
struct settle_slots {
  static constexpr const char* name = "settle_slots";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const uint8_t* slots;  // of the ranks
    uint64_t stride;
    uint64_t tag, step;
    step_counts* counts;  // NULL: a failure does not count yet
    slot_report* report;
    uint64_t* prefixes;      // of all slots: a copy
    const uint64_t* bounds;  // of the frames
    uint32_t ranks, own, frames;
    uint32_t returns;          // this rank's frames are among them: they go back to the residuals if the gates close
    uint32_t gates, reserved;  // 0: they were collected (collect_gates)
    slot_gate gate[gates_max];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    typename Block::template each<uint32_t> bad, foreign;
    b.phase([&](unsigned lane) {
      bad[lane] = 0;
      foreign[lane] = a.ranks;
      if (lane == 0 && a.gates == 0) {
        bad[lane] = a.report->bad;
        if (a.report->late) foreign[lane] = ~a.report->late;
      }
      for (uint32_t g = lane; g < a.gates; g += lanes) bad[lane] |= *a.gate[g].gate != 0;
      for (uint32_t rank = lane; rank < a.ranks; rank += lanes) {
        bad[lane] |= !is_sound(a, rank);
        for (uint32_t g = 0; g < a.gates; ++g)
          if (!has_tag(a.slots + rank * a.stride + a.gate[g].at, a.tag) && rank < foreign[lane]) foreign[lane] = rank;
      }
      bad[lane] |= foreign[lane] < a.ranks;
    });
    const uint32_t failed = b.sum(bad) != 0, first = b.min(foreign);
    b.phase([&](unsigned lane) {
      for (uint32_t g = lane; g < a.gates; g += lanes) {
        *a.gate[g].gate = failed;
        *a.gate[g].back = !(failed && a.returns && a.gate[g].is_whole(a.own));
      }
      const uint64_t words = device_prefix(a.frames) / 8, all = words * a.ranks;
      for (uint64_t i = lane; i < all; i += lanes)
        a.prefixes[i] = reinterpret_cast<const uint64_t*>(a.slots + i / words * a.stride)[i % words];
      if (lane != 0) return;
      a.report->restored = failed && a.returns;
      a.report->failed = failed;
      a.report->foreign = first < a.ranks ? first + 1 : 0;
      a.report->bad = a.report->late = 0;
      if (!a.counts) return;
      if (failed) a.counts->fail(a.step);
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
  // Of this step, of a rank that completed the same steps, and encoded all of its frames.
  DR_HD static bool is_sound(const args& a, uint32_t rank) {
    const slot_head head = head_of(a, rank);
    const auto* const words = reinterpret_cast<const uint64_t*>(a.slots + rank * a.stride + sizeof head);
    for (uint32_t f = 0; f < a.frames; ++f)
      if (has_reason(words + reason_word(a.frames, f))) return false;
    return is_sealed(head, words, a.frames, a.bounds) && head.tag == a.tag && head.failures == head_of(a, 0).failures;
  }
};

// After the checks of frames that this rank sent: opens the way back to the residuals for those that are whole, unless they
// are back.
struct open_returns {
  static constexpr const char* name = "open_returns";
  static constexpr unsigned lanes = 64, grid_phases = 1;
  struct args {
    slot_report* report;
    uint32_t gates;
    uint32_t is_last;  // of the unit's launches
    slot_gate gate[gates_max];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t restored = b.template once<uint32_t>([&] { return a.report->restored; });
    b.phase([&](unsigned lane) {
      for (uint32_t g = lane; g < a.gates; g += lanes) *a.gate[g].back = restored || !a.gate[g].is_whole(0);
      if (lane == 0 && a.is_last) a.report->restored = 1;
    });
  }
};

// Before settle_slots, where more gates than its arguments have room for close together: notes those that are closed.
struct collect_gates {
  static constexpr const char* name = "collect_gates";
  static constexpr unsigned lanes = 64, grid_phases = 1;
  struct args {
    const uint8_t* slots;  // of the ranks, each with a frame of its own range
    uint64_t stride, tag;
    slot_report* report;
    uint32_t gates, reserved;
    slot_gate gate[gates_max];  // at: from the first slot on
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    b.phase([&](unsigned lane) {
      for (uint32_t g = lane; g < a.gates; g += lanes) {
        const uint64_t at = a.gate[g].at;
        if (*a.gate[g].gate) atomic_or(&a.report->bad, 1u);
        if (!has_tag(a.slots + at, a.tag)) atomic_max(&a.report->late, ~static_cast<uint32_t>(at / a.stride));
      }
    });
  }
};

// The slot of an owner's sums. If the slots that it got are not sound, it says why to all ranks: its frames are of zeros then.
struct seal_sums {
  static constexpr const char* name = "seal_sums";
  static constexpr unsigned lanes = 32, grid_phases = 1;
  struct args {
    uint8_t* slot;
    const dr_result *made, *judged;  // of the encodes of sums, and of the frames that were added up; [frames]
    step_counts* counts;
    const slot_report* report;  // of the slots that it got
    const uint64_t* prefixes;   // of these slots
    const uint64_t* bounds;     // of their frames
    uint64_t tag, step;
    uint64_t exist;  // a bit for each frame: its range has elements
    uint32_t ranks, own, frames, reserved;
  };
  struct shared {};
  struct verdict {
    bool refuses = false;  // the ranks are out of step
    uint32_t culprit = 0;  // 1 and the rank at fault
    uint32_t first = 0;    // frame that reports it; those behind it do, too
    uint64_t why[words_a_frame - 1] = {};
  };

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      a.counts->enter(a.step);
      const bool failed = a.report->failed;
      const verdict v = failed ? verdict_of(a) : verdict{};
      slot_head head;
      head.tag = a.tag;
      head.failures = a.counts->failures;
      head.failed = a.counts->failed;
      head.flags = v.refuses ? slot_head::refused : v.culprit << slot_head::culprit_shift;
      auto* const words = reinterpret_cast<uint64_t*>(a.slot + sizeof head);
      const size_t n = words_a_frame * a.frames;
      head.longest = prefix_size(n);
      for (uint32_t f = 0; f < a.frames; ++f) {
        const bool exists = a.exist >> f & 1;
        uint64_t* const why = words + reason_word(a.frames, f);
        words[f] = exists ? a.made[f].size : 0;
        head.longest += words[f];
        // (Who owns nothing tells it with the first frame, which it has not.)
        const bool tells = a.exist ? exists && f >= v.first : f == 0;
        for (size_t i = 0; i + 1 < words_a_frame; ++i) why[i] = tells ? v.why[i] : 0;
        if (exists && !failed) write_reason(a.made[f], a.own, f, why);
      }
      head.check = check_of(head, words, n);
      std::memcpy(a.slot, &head, sizeof head);
    });
  }

 private:
  DR_HD static const uint64_t* prefix_of(const args& a, uint32_t rank) {
    return a.prefixes + rank * (device_prefix(a.frames) / 8);
  }
  DR_HD static slot_head head_of(const args& a, uint32_t rank) {
    slot_head head;
    std::memcpy(static_cast<void*>(&head), prefix_of(a, rank), sizeof head);
    return head;
  }
  DR_HD static const uint64_t* reason_of(const args& a, uint32_t rank, uint32_t f) {
    return prefix_of(a, rank) + sizeof(slot_head) / 8 + reason_word(a.frames, f);
  }

  // In the order of the CPU: damaged heads, then ranks that are elsewhere, then frames.
  DR_HD static verdict verdict_of(const args& a) {
    const auto at_slot = [&](uint32_t rank, dr_status status) {
      dr_result r{};
      r.status = status;
      r.tensor = no_tensor;
      verdict v;
      v.culprit = rank + 1;
      write_reason(r, a.own, 0, v.why, fault_kind::slot);
      return v;
    };
    for (uint32_t rank = 0; rank < a.ranks; ++rank)
      if (!is_sealed(head_of(a, rank), prefix_of(a, rank) + sizeof(slot_head) / 8, a.frames, a.bounds))
        return at_slot(rank, DR_E_CORRUPT);
    for (uint32_t rank = 0; rank < a.ranks; ++rank)
      if (head_of(a, rank).tag >> 32 != a.tag >> 32) return at_slot(rank, DR_E_ARGUMENT);
    for (uint32_t rank = 0; rank < a.ranks; ++rank)
      if (head_of(a, rank).tag != a.tag || head_of(a, rank).failures != head_of(a, 0).failures) {
        verdict v;
        v.refuses = true;
        return v;
      }
    for (uint32_t f = 0; f < a.frames; ++f) {
      if (!(a.exist >> f & 1)) continue;
      const dr_result& r = a.judged[f];
      uint32_t rank = 0;
      const uint64_t frame_rank = r.status ? r.frame : a.ranks;
      while (rank < a.ranks && rank <= frame_rank && !has_reason(reason_of(a, rank, f))) ++rank;
      verdict v;
      v.first = f;
      if (rank < a.ranks && rank <= frame_rank) {
        v.culprit = rank + 1;
        for (size_t i = 0; i + 1 < words_a_frame; ++i) v.why[i] = reason_of(a, rank, f)[i];
        v.why[0] = (v.why[0] & ~uint64_t{0xff0000}) | static_cast<uint64_t>(fault_kind::peer) << 16;
        return v;
      }
      if (!r.status || r.frame >= a.ranks) continue;
      v.culprit = static_cast<uint32_t>(r.frame) + 1;
      write_reason(r, a.own, f, v.why, fault_kind::frame);
      return v;
    }
    if (!a.exist) return {};  // what is wrong with frames say those that have some
    return at_slot(a.report->foreign ? a.report->foreign - 1 : a.own, DR_E_ARGUMENT);
  }
};

// The states of sums as they were before an encode, if it was not to be: bit for bit.
struct state_job {
  uint64_t* state;
  const uint64_t* copy;
  uint64_t words;
  uint32_t first_tile, reserved;
};
inline constexpr uint32_t state_tile = 4096;

template <size_t N>
struct return_states {
  static constexpr const char* name = "return_states";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const slot_report* report;
    uint32_t jobs, tiles;
    state_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (!a.report->failed) return;
    const state_job& j = job_of_tile(a, b.index());
    const uint64_t first = uint64_t{b.index() - j.first_tile} * state_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t k = lane; k < state_tile && first + k < j.words; k += lanes) j.state[first + k] = j.copy[first + k];
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
