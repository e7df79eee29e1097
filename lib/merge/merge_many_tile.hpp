// The sum of many frames on a GPU, or one frame into a fresh output.
#pragma once

#include "merge/merge_tile.hpp"

namespace dr {

// A tile of the output is in shared memory, and the frames' parts of it are added in the order of the frames.
struct merge_tiles {
  static constexpr const char* name = "merge_tiles";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t group = 64;         // frames whose parts are found together
  static constexpr uint32_t stage = 4 * lanes;  // values that are fetched together
  struct args {
    const merge_row* rows;  // [frames][outs]
    const merge_out* outs;
    delivery_gate gate;
    uint32_t n, frames;  // n: rows of a frame
    uint32_t cuts;       // outputs that are parts of the one row; 0: each is its row's
    uint32_t adds;       // to the outputs' contents; otherwise from +0
    uint32_t touches;    // adds, and reads and writes only where there are values
    uint32_t copies;     // one frame, no arithmetic: bit for bit if the types are the same
  };
  struct part {               // a frame's
    const uint32_t* support;  // NULL: all rows
    const void* values;
    uint32_t begin, width;  // first row
    float weight;
    uint32_t dtype;
  };
  struct shared {
    alignas(16) uint32_t bits[merge_tile];
    uint32_t loaded[merge_tile / 32];  // `touches`: a bit per value
    part parts[group];
    uint32_t before[group + 1];  // values of the group before those of a frame
    uint32_t value[stage];       // weighted, or bits to copy
    uint16_t place[stage];       // in the tile; merge_tile: in another
  };
  struct range {
    uint32_t first, last;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    if (a.gate.is_closed(b)) return;
    const uint32_t out = out_of_tile(b, a), row = a.cuts ? 0 : out;
    const merge_out& o = a.outs[out];
    // The tile in the list of the row's tiles, and its first value: in the output, and in the row.
    const uint32_t tile = a.cuts ? b.index() : b.index() - o.first_tile;
    const uint64_t begin_out = uint64_t{b.index() - o.first_tile} * merge_tile, first = o.first + begin_out;
    const uint32_t length =
        o.elements - begin_out < merge_tile ? static_cast<uint32_t>(o.elements - begin_out) : merge_tile;
    b.phase([&](unsigned lane) {
      if (a.touches)
        for (uint32_t i = lane; i < merge_tile / 32; i += lanes) s.loaded[i] = 0;
      else
        load_tile(s, a, o, begin_out, length, lane);
    });
    for (uint32_t begin = 0; begin < a.frames; begin += group) {
      const uint32_t frames = a.frames - begin < group ? a.frames - begin : group;
      typename Block::template each<uint32_t> before;
      b.phase([&](unsigned lane) {
        before[lane] = 0;
        if (lane < frames)
          before[lane] = part_of(a.rows[uint64_t{begin + lane} * a.n + row], tile, first, length, s.parts[lane]);
      });
      const uint32_t all = b.exclusive_sum(before);
      b.phase([&](unsigned lane) {
        if (lane < frames) s.before[lane] = before[lane];
        if (lane == 0) s.before[frames] = all;
      });
      for (uint32_t from = 0; from < all; from += stage) {
        const uint32_t to = all - from < stage ? all : from + stage;
        b.phase([&](unsigned lane) {
          fetch(s, a, o, first, length, frames, from, to, lane);
          if (a.touches) touch(s, o, begin_out, to - from, lane);
        });
        range some{0, 1};
        if (frames > 1)
          some = b.template once<range>([&] {
            return range{frame_of(s, frames, from), frame_of(s, frames, to - 1) + 1};
          });
        for (uint32_t f = some.first; f < some.last; ++f)
          b.phase([&](unsigned lane) { add(s, a, o, f, from, to, lane); });
      }
    }
    b.phase([&](unsigned lane) { store_tile(s, a, o, begin_out, length, lane); });
  }

 private:
  template <class Block>
  DR_HD static uint32_t out_of_tile(Block& b, const args& a) {
    const uint32_t outs = a.cuts ? a.cuts : a.n;
    if (outs == 1) return 0;
    typename Block::template each<uint32_t> before;
    b.phase([&](unsigned lane) {
      before[lane] = 0;
      for (uint32_t i = lane; i < outs; i += lanes) before[lane] += a.outs[i].first_tile <= b.index();
    });
    return b.sum(before) - 1;
  }

  // Finds the part of m in the tile; returns its number of values. Rows of several values may extend to adjacent tiles.
  DR_HD static uint32_t part_of(const merge_row& m, uint32_t tile, uint64_t first, uint32_t length, part& p) {
    const uint64_t rows = support_rows(m);
    const bool all = has_all(m);
    uint64_t begin = 0, end = 0;
    if (all) {
      begin = first / m.width;
      end = (first + length - 1) / m.width + 1;
    } else {
      begin = m.starts[tile];
      end = m.starts[tile + 1] + uint64_t{m.width > 1};
    }
    if (end > rows) end = rows;
    p = {all ? nullptr : m.support, values_of(m), static_cast<uint32_t>(begin), m.width, m.weight, m.dtype};
    return begin < end ? static_cast<uint32_t>(end - begin) * m.width : 0;
  }

  // The frame of value i of the group: the last one with at most i values before it.
  DR_HD static uint32_t frame_of(const shared& s, uint32_t frames, uint32_t i) {
    uint32_t low = 0, high = frames;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      if (s.before[middle] <= i)
        low = middle;
      else
        high = middle;
    }
    return low;
  }

  // Loads values and their positions, several per lane, all issued at once: no branch depends on a load. The frames'
  // values have one type.
  DR_HD static void fetch(shared& s, const args& a, const merge_out& o, uint64_t first, uint32_t length,
                          uint32_t frames, uint32_t from, uint32_t to, unsigned lane) {
    with_value_type(s.parts[0].dtype, [&](auto type) {
      using T = decltype(type);
      constexpr unsigned per_lane = stage / lanes;
      uint32_t at[per_lane], bits[per_lane], column[per_lane], frame[per_lane];
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k) {
        const uint32_t next = from + k * lanes + lane, i = next < to ? next : to - 1;
        frame[k] = frames == 1 ? 0 : frame_of(s, frames, i);
        const part& p = s.parts[frame[k]];
        const uint32_t j = i - s.before[frame[k]];
        at[k] = p.begin + (p.width == 1 ? j : j / p.width);
        column[k] = p.width == 1 ? 0 : j % p.width;
      }
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k) {
        const part& p = s.parts[frame[k]];
        bits[k] = static_cast<const typename T::bits*>(p.values)[uint64_t{at[k]} * p.width + column[k]];
        if (p.support) at[k] = p.support[at[k]];
      }
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k) {
        const uint32_t i = k * lanes + lane;
        const part& p = s.parts[frame[k]];
        const uint64_t place = uint64_t{at[k]} * p.width + column[k];
        s.place[i] = static_cast<uint16_t>(place >= first && place - first < length ? place - first : merge_tile);
        const auto value = static_cast<typename T::bits>(bits[k]);
        if (!a.copies)
          s.value[i] = std::bit_cast<uint32_t>(weighted(p.weight, T::to_f32(value)));
        else
          s.value[i] = p.dtype == o.dtype ? bits[k] : bits_of(o.dtype, T::to_f32(value));
      }
    });
  }

  // Loads the output values to which this lane adds, once each.
  DR_HD static void touch(shared& s, const merge_out& o, uint64_t first, uint32_t n, unsigned lane) {
    constexpr unsigned per_lane = stage / lanes;
    uint32_t bits[per_lane], place[per_lane];
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k) {
      const uint32_t i = k * lanes + lane;
      place[k] = i < n ? uint32_t{s.place[i]} : merge_tile;
      bits[k] = 0;
      if (place[k] >= merge_tile) continue;
      const uint32_t bit = 1u << place[k] % 32;
      if (atomic_or(&s.loaded[place[k] / 32], bit) & bit)
        place[k] = merge_tile;
      else
        bits[k] = load_bits(o.dtype, o.values, first + place[k]);
    }
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k)
      if (place[k] < merge_tile) s.bits[place[k]] = bits[k];
  }

  // Adds the values [from, to) of the group that belong to frame f; their positions differ.
  DR_HD static void add(shared& s, const args& a, const merge_out& o, uint32_t f, uint32_t from, uint32_t to,
                        unsigned lane) {
    const uint32_t begin = s.before[f] > from ? s.before[f] - from : 0,
                   end = (s.before[f + 1] < to ? s.before[f + 1] : to) - from;
    for (uint32_t i = begin + lane; i < end; i += lanes) {
      const uint32_t place = s.place[i];
      if (place >= merge_tile) continue;
      uint32_t& bits = s.bits[place];
      bits = a.copies ? s.value[i]
                      : bits_of(o.dtype, computed(value_of(o.dtype, bits) + std::bit_cast<float>(s.value[i])));
    }
  }

  DR_HD static void load_tile(shared& s, const args& a, const merge_out& o, uint64_t first, uint32_t length,
                              unsigned lane) {
    if (!a.adds || o.dtype == DR_F32) {
      const uint32_t* const from = static_cast<const uint32_t*>(o.values) + first;
      constexpr unsigned per_lane = merge_tile / (4 * lanes);
      four_words four[per_lane] = {};
      const bool whole = length == merge_tile && aligned_to_four(from);
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k)
        if (a.adds && whole) four[k] = reinterpret_cast<const four_words*>(from)[k * lanes + lane];
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k) {
        if (a.adds && !whole) four[k] = load_four(from, 4 * (k * lanes + lane), length);
        reinterpret_cast<four_words*>(s.bits)[k * lanes + lane] = four[k];
      }
      return;
    }
    for (uint32_t i = lane; i < length; i += lanes) s.bits[i] = load_bits(o.dtype, o.values, first + i);
  }
  DR_HD static void store_tile(shared& s, const args& a, const merge_out& o, uint64_t first, uint32_t length,
                               unsigned lane) {
    if (a.touches) {
      for (uint32_t i = lane; i < length; i += lanes)
        if (s.loaded[i / 32] >> i % 32 & 1) store_bits(o.dtype, o.values, first + i, s.bits[i]);
    } else if (o.dtype == DR_F32) {
      uint32_t* const to = static_cast<uint32_t*>(o.values) + first;
      for (uint32_t i = 4 * lane; i < length; i += 4 * lanes)
        store_four(to, i, length, *reinterpret_cast<const four_words*>(s.bits + i));
    } else {
      for (uint32_t i = lane; i < length; i += lanes) store_bits(o.dtype, o.values, first + i, s.bits[i]);
    }
  }
};

}  // namespace dr
