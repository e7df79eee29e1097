// Payloads of frames of a known batch on a GPU: verifies checks and copies sections to aligned slots, so that no codec
// reads an unchecked byte (FORMAT.md is normative).
#pragma once

#include <cstdint>

#include "container/frame_tile.hpp"
#include "container/header_tile.hpp"

namespace dr {

// Payloads: a block reads one chunk of the check once, sums it and copies it.
struct unpack_frames {
  static constexpr const char* name = "unpack_frames";
  static constexpr unsigned lanes = frame_lanes, grid_phases = 1;
  using args = unpack_args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t n = a.shape.rows * a.frame_count, row = row_of(b, a, n);
    const unpack_row& d = a.place[row];
    unpack_state& state = a.state[d.frame];
    const uint32_t frame_first = d.frame * a.shape.rows, frame_end = frame_first + a.shape.rows;
    const uint32_t end = frame_end < n ? a.place[frame_end].first_tile : a.tiles;
    uint64_t term = 0;
    const bool sound = b.template once<uint32_t>([&] { return state.fault.code == DR_OK; });
    if (sound) term = a.rows[row].mode == mode_dense ? sum_dense(b, a, row, d, state) : copy_chunk(b, a, row, d, state);
    // Only the sums must be visible before the count: this launch does not read the copies.
    const uint32_t before = b.template once<uint32_t>([&] {
      if (term) atomic_add(&a.result[row].seen, term);
      fence_grid();
      return atomic_add(&state.done, 1u);
    });
    if (before + 1 != end - a.place[frame_first].first_tile) return;
    b.phase([](unsigned) { fence_grid(); });
    compare(b, a, frame_first, state);
  }

  template <class Block>
  DR_HD static uint32_t row_of(Block& b, const args& a, uint32_t n) {
    if (n == 1) return 0;
    typename Block::template each<uint32_t> before;
    b.phase([&](unsigned lane) {
      before[lane] = 0;
      for (uint32_t i = lane; i < n; i += lanes) before[lane] += a.place[i].first_tile <= b.index();
    });
    return b.sum(before) - 1;
  }

  // A dense row, which is read where it is, may have more chunks than the launch has blocks for it. Returns the sum of the
  // terms of a block's.
  template <class Block>
  DR_HD static uint64_t sum_dense(Block& b, const args& a, uint32_t row, const unpack_row& d, unpack_state& state) {
    const unpack_frame& f = a.frames[d.frame];
    const uint32_t skipped = (a.shape.rows == 1 ? state.header_size : 0) + a.prefix,
                   blocks =
                       (row + 1 < a.shape.rows * a.frame_count ? a.place[row + 1].first_tile : a.tiles) - d.first_tile;
    const uint64_t base = a.rows[row].offset - skipped, payload = payload_of(a.rows[row]);
    const uint64_t end = skipped + padded(payload);
    uint64_t sum = 0;
#pragma unroll 1
    for (uint32_t chunk = b.index() - d.first_tile; chunk < ceil_div(end, frame_tile); chunk += blocks) {
      const uint64_t begin = uint64_t{chunk} * frame_tile, left = end - begin;
      sum += chunk_term(
          b, (left < frame_tile ? left : frame_tile) / 4, chunk,
          [&](uint64_t i) { return judge_frames::frame_word(f, base + begin + 4 * i); },
          [&](unsigned lane) {
            if (lane == 0 && left <= frame_tile) check_padding(f, state, base + skipped + payload, base + end);
          });
    }
    return sum;
  }
  // Padding is zero: at most three bytes, in the last word.
  DR_HD static void check_padding(const unpack_frame& f, unpack_state& state, uint64_t at, uint64_t end) {
    for (; at < end; ++at)
      if (f.data[at]) fail_frame(state, DR_E_CORRUPT, at, f.data[at]);
  }

  // Returns the term of the chunk.
  template <class Block>
  DR_HD static uint64_t copy_chunk(Block& b, const args& a, uint32_t row, const unpack_row& d, unpack_state& state) {
    const device_row& r = a.rows[row];
    const unpack_frame& f = a.frames[d.frame];
    const bool lone = a.shape.rows == 1;
    const uint64_t skipped = (lone ? state.header_size : 0) + a.prefix;  // the sections come behind
    const uint64_t payload = payload_of(r);
    const uint64_t chunk = b.index() - d.first_tile, begin = chunk * frame_tile, end = skipped + padded(payload);
    if (begin >= end) return 0;
    const uint64_t base = r.offset - skipped;  // in the frame, of position 0
    const uint64_t words = (end - begin < frame_tile ? end - begin : frame_tile) / 4;
    return chunk_term(
        b, words, chunk, [&](uint64_t i) { return judge_frames::frame_word(f, base + begin + 4 * i); },
        [&](unsigned lane) {
          if (lane == 0 && end - begin <= frame_tile) check_padding(f, state, base + skipped + payload, base + end);
          uint64_t section = skipped;
          for (unsigned s = 0; s < 3; ++s) {
            copy_section(a, r, d, f.data + r.offset, section - skipped, s, begin > section ? begin - section : 0,
                         begin + frame_tile > section ? begin + frame_tile - section : 0, lane);
            section += r.size[s];
          }
        });
  }

  // Copies the words of section s whose first byte is in [from, to) of the section, which begins at `at` of the
  // payload.
  DR_HD static void copy_section(const args&, const device_row& r, const unpack_row& d, const uint8_t* payload,
                                 uint64_t at, unsigned s, uint64_t from, uint64_t to, unsigned lane) {
    const bool raw = is_raw_index(r.mode, s);
    const uint64_t capacity = raw ? raw_index_size(d.support_max) : d.capacity[s];
    uint64_t end = r.size[s] < to ? r.size[s] : to;
    if (end > capacity) end = capacity;
    auto* const out = reinterpret_cast<uint32_t*>(raw ? d.support : d.slot[s]);
    for (uint64_t k = ceil_div(from, 4) + lane; 4 * k < end; k += lanes) {
      // Words without a byte of the section are not read: they may be past the end of the frame.
      const uint64_t left = r.size[s] - 4 * k, byte = at + 4 * k;
      const auto* const words = reinterpret_cast<const uint32_t*>(payload) + byte / 4;
      const unsigned shift = 8 * (byte % 4);
      uint32_t word = words[0] >> shift;
      if (shift && left > 4 - byte % 4) word |= words[1] << (32 - shift);
      out[k] = first_bytes(word, left);
    }
    // Codecs read vectors, and one word past the end.
    if (r.size[s] == 0 || r.size[s] > to || r.size[s] < from || r.size[s] > capacity) return;
    for (uint64_t k = ceil_div(r.size[s], 4) + lane; k < ceil_div(r.size[s], 16) * 4 + 4; k += lanes) out[k] = 0;
  }

  // After all chunks of a frame: compares the sum with its check.
  template <class Block>
  DR_HD static void compare(Block& b, const args& a, uint32_t first, unpack_state& state) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < a.shape.rows; i += lanes) {
        const unpack_result& x = a.result[first + i];
        const uint64_t stored = a.shape.rows == 1 ? state.check : x.check;
        if (x.seen != stored) fail_frame(state, DR_E_CORRUPT, a.rows[first + i].offset, x.seen);
      }
    });
    if (b.template once<uint32_t>([&] { return state.fault.code != DR_OK; }))
      judge_frames::fail_rows(b, a, first, state);
  }
};

}  // namespace dr
