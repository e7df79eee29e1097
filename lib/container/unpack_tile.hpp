// Payloads of frames of a known batch on a GPU: verifies checks, and copies the sections of codecs that read aligned slots
// (FORMAT.md is normative).
#pragma once

#include <cstdint>

#include "container/frame_tile.hpp"
#include "container/header_tile.hpp"

namespace dr {

// Payloads: a block reads one chunk of the check once, sums it and copies what has a slot.
struct unpack_frames {
  static constexpr const char* name = "unpack_frames";
  static constexpr unsigned lanes = frame_lanes, grid_phases = 1, resident = 5;
  using args = unpack_args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t n = a.shape.rows * a.frame_count, row = row_of(b, a, n);
    const unpack_row& d = a.place[row];
    unpack_state& state = a.state[d.frame];
    const uint32_t frame_first = d.frame * a.shape.rows, frame_end = frame_first + a.shape.rows;
    const uint32_t end = frame_end < n ? a.place[frame_end].first_tile : a.tiles;
    const bool sound = b.template once<uint32_t>([&] { return state.fault.code == DR_OK; });
    const uint64_t sum = sound ? read_row(b, a, row, d, state) : 0;
    // Only the sums must be visible before the count: a block reads no other one's copies.
    const uint32_t before = b.template once<uint32_t>([&] {
      if (sum) atomic_add(&a.result[row].seen, sum);
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

  // The sum of the terms of a block's chunks of a row: of one, but a row may have more than the launch has blocks for it.
  template <class Block>
  DR_HD static uint64_t read_row(Block& b, const args& a, uint32_t row, const unpack_row& d, unpack_state& state) {
    const device_row& r = a.rows[row];
    const unpack_frame& f = a.frames[d.frame];
    const uint32_t end_tile = row + 1 < a.shape.rows * a.frame_count ? a.place[row + 1].first_tile : a.tiles;
    const uint64_t payload = payload_of(r), end = skipped(a, state) + padded(payload),
                   base = r.offset - skipped(a, state);  // in the frame, of position 0
    uint64_t sum = 0;
#pragma unroll 1
    for (uint64_t chunk = b.index() - d.first_tile;; chunk += end_tile - d.first_tile) {
      const uint64_t begin = chunk * frame_tile, left = end - begin;
      if (begin < end)
        sum += chunk_term(
            b, (left < frame_tile ? left : frame_tile) / 4, chunk,
            [&](uint64_t i) { return judge_frames::frame_word(f, base + begin + 4 * i); },
            [&](unsigned lane) {
              if (lane == 0 && left <= frame_tile) check_padding(f, state, r.offset + payload, base + end);
              if (r.mode != mode_dense) copy_sections(r, d, f.data + r.offset, skipped(a, state), begin, lane);
            });
      if (d.lists) judge_keys(b, a, row, d, state, begin);
      if (begin + (end_tile - d.first_tile) * frame_tile >= end) break;
    }
    return sum;
  }
  // Padding is zero: at most three bytes, in the last word.
  DR_HD static void check_padding(const unpack_frame& f, unpack_state& state, uint64_t at, uint64_t end) {
    for (; at < end; ++at)
      if (f.data[at]) fail_frame(state, DR_E_CORRUPT, at, f.data[at]);
  }

  // Copies what has a slot of the chunk at `begin`, of a row whose sections come behind `skipped` bytes.
  DR_HD static void copy_sections(const device_row& r, const unpack_row& d, const uint8_t* payload, uint64_t skipped,
                                  uint64_t begin, unsigned lane) {
    uint64_t section = skipped;
    for (unsigned s = 0; s < 3; ++s) {
      copy_section(r, d, payload, section - skipped, s, begin > section ? begin - section : 0,
                   begin + frame_tile > section ? begin + frame_tile - section : 0, lane);
      section += r.size[s];
    }
  }

  // Copies the words of section s whose first byte is in [from, to) of the section, which begins at `at` of the
  // payload.
  DR_HD static void copy_section(const device_row& r, const unpack_row& d, const uint8_t* payload, uint64_t at,
                                 unsigned s, uint64_t from, uint64_t to, unsigned lane) {
    const bool raw = is_raw_index(r.mode, s);
    const uint64_t capacity = raw ? raw_index_size(d.support_max) : d.capacity[s];
    uint64_t end = r.size[s] < to ? r.size[s] : to;
    if (end > capacity) end = capacity;
    auto* const out = reinterpret_cast<uint32_t*>(raw ? d.support : d.slot[s]);
    if (!out) return;
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

  // Of a row whose index codec checks supports: the keys that it does not see, for they are raw; and that there are none.
  // (Inlined, it takes registers of every row's path.)
  template <class Block>
  [[gnu::noinline]] DR_HD static void judge_keys(Block& b, const args& a, uint32_t row, const unpack_row& d,
                                                 const unpack_state& state, uint64_t begin) {
    device_row& r = a.rows[row];
    if (r.mode == mode_dense || (r.mode == mode_plan && r.support_count)) return;
    const auto count = static_cast<uint32_t>(r.support_count < d.support_max ? r.support_count : d.support_max);
    const uint64_t section = skipped(a, state) + r.size[section_value] + r.size[section_order];
    const uint32_t first = keys_ahead(begin, section, count), last = keys_ahead(begin + frame_tile, section, count);
    if (count ? first == last : begin != 0) return;
    b.phase([&](unsigned lane) {
      const auto* const keys = reinterpret_cast<const uint32_t*>(d.support) + first;
      // The key ahead is another block's, so it is read from the frame.
      const uint32_t n = last - first,
                     ahead = first ? word_at(a.frames[d.frame].data,
                                             r.offset + section - skipped(a, state) + 4 * uint64_t{first - 1}, 8)
                                   : 0;
      for (uint32_t i = lane; i < n; i += lanes) {
        const uint32_t x = keys[i];
        if (x < d.universe && (first + i == 0 || (i ? keys[i - 1] : ahead) < x)) continue;
        raise(&r.fault, DR_E_CORRUPT, DR_STREAM_INDEX, first + i, x);
      }
      if (a.starts && a.starts[row].starts) a.starts[row].list(keys, n, first, ahead, last == count, lane, lanes);
    });
  }
  // Keys of a section whose first byte is ahead of `at`.
  DR_HD static uint32_t keys_ahead(uint64_t at, uint64_t section, uint32_t count) {
    const uint64_t n = at > section ? ceil_div(at - section, 4) : 0;
    return n < count ? static_cast<uint32_t>(n) : count;
  }
  // Bytes that the check of a row's chunks counts ahead of its sections.
  DR_HD static uint64_t skipped(const args& a, const unpack_state& state) {
    return (a.shape.rows == 1 ? state.header_size : 0) + a.prefix;
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
