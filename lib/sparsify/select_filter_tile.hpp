// The read of a tensor: candidates (key >= lo) are noted tile by tile, those in [lo, hi] are counted in bins.
#pragma once

#include <cstdint>
#include <cstring>

#include "sparsify/select_unit_tile.hpp"

namespace dr {

template <class Bits, bool Feedback, size_t N>
struct select_filter {
  static constexpr const char* name = "select_filter";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  // A lane reads `vectors` vectors of `length` values, at a stride of `lanes` vectors; afterwards it processes `own`
  // consecutive values.
  static constexpr uint32_t length = 16 / sizeof(Bits), own = select_tile / lanes, vectors = own / length;
  // A vector's mask: a bit per value for candidates; above these, a bit per value for keys above hi.
  using mask = std::conditional_t<length == 4, uint8_t, uint16_t>;
  static constexpr uint64_t candidates = length == 4 ? 0x0f0f0f0f0f0f0f0f : 0x00ff00ff00ff00ff;
  struct shared {
    union {
      alignas(8) mask of[lanes * vectors];
      uint16_t place[select_tile];         // the candidates' positions in the tile
      uint32_t row[select_tile / 2 / 32];  // for rows of several values: a bit per row that is not all zeros
    };
  };

  template <class F>
  DR_HD static void each_ahead(const args& a, uint32_t block, F&& f) {
    const select_unit& u = job_of_tile(a, block);
    if (Feedback || u.kind != select_chance) each_ahead_of<Bits>(u, block - u.first_tile, f);
  }

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    const view v = view::of(a, u);
    const uint32_t tile = b.index() - u.first_tile;
    if (u.columns() != 1) return rows(b, s, v, tile);
    uint32_t own_tile = tile;  // of the run
    const unit_run r = unit_run::of_tile(u, own_tile);
    const select_state& state = v.state();
    const bool live = u.row->fault.code == DR_OK, ranked = v.is_ranked(), by_chance = u.kind == select_chance;
    const uint32_t lo = ranked ? state.lo : u.low, hi = ranked ? state.hi : magnitude_mask<Bits>, shift = state.shift;
    // Vectors are aligned, so the first may begin before the values do.
    const uint64_t skew = reinterpret_cast<uintptr_t>(r.values) % 16 / sizeof(Bits),
                   begin = uint64_t{own_tile} * select_tile - skew;
    const bool inner = uint64_t{own_tile} * select_tile >= skew && begin + select_tile <= r.n;
    typename Block::template each<uint64_t> masks;
    typename Block::template each<uint32_t> places;
    b.phase([&](unsigned lane) {
      vector16 x[vectors];
#pragma unroll
      for (uint32_t k = 0; k < vectors; ++k) {
        if (!Feedback && by_chance) continue;  // compact reads the values that are selected
        x[k] = read(r, begin + (k * lanes + lane) * length, inner);
      }
      // (Tested here, not before, because `live` is loaded at the same time.)
      if (!live) return;
#pragma unroll
      for (uint32_t k = 0; k < vectors; ++k) {
        if constexpr (Feedback) accumulate(v.common, r, begin + (k * lanes + lane) * length, inner, x[k]);
        s.of[k * lanes + lane] = by_chance ? chosen(v, r, begin + (k * lanes + lane) * length) : judge(x[k], lo, hi);
      }
    });
    if (!live) return;
    b.phase([&](unsigned lane) {
      std::memcpy(&masks[lane], s.of + lane * vectors, sizeof masks[lane]);
      places[lane] =
          static_cast<uint32_t>(popcount(masks[lane] & candidates) | popcount(masks[lane] & ~candidates) << 16);
    });
    const uint32_t all = b.exclusive_sum(places), count = all & 0xffff;
    const uint64_t was = note(b, v, tile, count, all >> 16);
    if (count == 0) return;
    // The number of candidates varies by lane; so all lanes together store all of them.
    b.phase([&](unsigned lane) {
      uint32_t to = places[lane] & 0xffff;
      for (uint64_t left = masks[lane] & candidates; left; left &= left - 1) {
        const auto bit = static_cast<uint32_t>(countr_zero(left));
        s.place[to++] = static_cast<uint16_t>(lane * own + bit / (2 * length) * length + bit % (2 * length));
      }
    });
    b.phase([&](unsigned lane) {
      for (uint32_t k = lane; k < count; k += lanes) {
        const uint64_t i = begin + s.place[k], to = static_cast<uint32_t>(was) + uint64_t{k};
        const Bits value = ranked ? stored<Bits>(v.common, r, i) : Bits{0};
        if (to < u.capacity) v.positions()[to] = r.first + static_cast<uint32_t>(i);
        if (!ranked) continue;
        if (to < u.capacity) v.noted()[to] = value;
        if (key_of(value) <= hi) atomic_add(v.bins() + ((key_of(value) - lo) >> shift), 1u);
      }
    });
  }

  // Zeros past the end of the tensor.
  DR_HD static vector16 read(const unit_run& r, uint64_t i, bool inner) {
    const auto* const from = static_cast<const Bits*>(r.values);
    if (inner) return *reinterpret_cast<const vector16*>(from + i);
    vector16 x{};
#pragma unroll
    for (uint32_t c = 0; c < length; ++c)
      if (i + c < r.n) put(x, c, from[i + c]);
    return x;
  }
  DR_HD static void put(vector16& x, uint32_t c, uint32_t value) {
    if constexpr (length == 4)
      x.word[c] = value;
    else
      x.word[c / 2] = (x.word[c / 2] & (c % 2 ? 0xffff : 0xffff0000)) | value << c % 2 * 16;
  }

  // key >= lo if key + (top - lo) sets the sign's bit, from which nothing carries; two keys per word for 16-bit values.
  DR_HD static mask judge(const vector16& x, uint32_t lo, uint32_t hi) {
    constexpr uint32_t ones = length == 4 ? 1 : 0x10001, top = 1u << key_bits<Bits>, step = length / 4;
    const uint32_t from = (top - lo) * ones, beyond = (top - 1 - hi) * ones;
    uint32_t some = 0, above = 0;
#pragma unroll
    for (uint32_t q = 4; q-- > 0;) {
      const uint32_t key = x.word[q] & ~(top * ones);
      some = some << step | ((key + from) >> key_bits<Bits> & ones);
      above = above << step | ((key + beyond) >> key_bits<Bits> & ones);
    }
    if constexpr (length == 8) {
      some = (some | some >> 15) & 0xff;
      above = (above | above >> 15) & 0xff;
    }
    return static_cast<mask>(some | above << length);
  }

  // The elements of a vector that were drawn, or, of more than a half, those that were not.
  DR_HD static mask chosen(const view& v, const unit_run& r, uint64_t i) {
    uint32_t some = 0;
    if (i < r.n && i + length <= r.n) {
      const uint64_t at = r.first + i;
      some = funnel(v.drawn()[at / 32], v.drawn()[at / 32 + 1], at % 32);
    } else {
#pragma unroll
      for (uint32_t c = 0; c < length; ++c)
        if (i + c < r.n) some |= (v.drawn()[(r.first + i + c) / 32] >> (r.first + i + c) % 32 & 1) << c;
    }
    if (v.selects_others()) {
      some = ~some;
#pragma unroll
      for (uint32_t c = 0; c < length; ++c)
        if (i + c >= r.n) some &= ~(1u << c);
    }
    return static_cast<mask>(some & ((1u << length) - 1));
  }

  // m := acc; x becomes the rounded values.
  DR_HD static void accumulate(const select_common& c, const unit_run& r, uint64_t i, bool inner, vector16& x) {
    const bool wide = inner && reinterpret_cast<uintptr_t>(r.residual + i) % 16 == 0;
    float* const m = r.residual;
#pragma unroll
    for (uint32_t q = 0; q < length; q += 4) {
      const uint64_t at = i + q;  // (in front of the run for the first values of one that is not aligned)
      vector16 w{};
      if (wide) {
        w = *reinterpret_cast<const vector16*>(m + at);
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k)
          if (at + k < r.n) w.word[k] = std::bit_cast<uint32_t>(m[at + k]);
      }
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        const float acc = accumulated(c, std::bit_cast<float>(w.word[k]), element_of<Bits>(x, q + k));
        w.word[k] = std::bit_cast<uint32_t>(acc);
        put(x, q + k, inner || at + k < r.n ? rounded_value<Bits>(c, acc) : Bits{0});
      }
      if (wide) {
        *reinterpret_cast<vector16*>(m + at) = w;
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k)
          if (at + k < r.n) m[at + k] = std::bit_cast<float>(w.word[k]);
      }
    }
  }

  // Reserves and publishes the range of a tile's candidates. Returns the earlier value.
  template <class Block>
  DR_HD static uint64_t note(Block& b, const view& v, uint32_t tile, uint32_t count, uint32_t above) {
    return b.template once<uint64_t>([&] {
      const uint64_t was = atomic_add(&v.state().noted, uint64_t{above} << 32 | count);
      v.table()[2 * uint64_t{tile}] = static_cast<uint32_t>(was);
      v.table()[2 * uint64_t{tile} + 1] = count;
      return was;
    });
  }

  // Marks the rows [begin, begin + count) that are not all zeros, a bit each; calls judge(key, i) for every value.
  template <class Block, class F>
  DR_HD static void mark_rows(Block& b, uint32_t* marks, const select_unit& u, uint32_t begin, uint32_t count,
                              F&& judge) {
    const auto* const values = static_cast<const Bits*>(u.values) + uint64_t{begin} * u.width;
    b.phase([&](unsigned lane) {
      if (lane < (count + 31) / 32) marks[lane] = 0;
    });
    b.phase([&](unsigned lane) {
      const uint32_t whole = lanes / u.width, rest = lanes % u.width;
      uint32_t row = lane / u.width, column = lane % u.width, last = ~0u;
      for (uint64_t i = lane; row < count; i += lanes) {
        const uint32_t key = key_of(values[i]);
        if (key && row != last) atomic_or(marks + row / 32, 1u << row % 32);
        if (key) last = row;
        judge(key, uint64_t{begin} * u.width + i);
        row += whole;
        column += rest;
        if (column >= u.width) {
          column -= u.width;
          ++row;
        }
      }
    });
  }

  // Rows of several values: a candidate if any value is not a zero.
  template <class Block>
  DR_HD static void rows(Block& b, shared& s, const view& v, uint32_t tile) {
    const select_unit& u = v.unit;
    if (u.row->fault.code != DR_OK) return;
    const uint32_t shift = tile_shift(u.width), begin = tile << shift;
    const uint32_t count = u.d - begin < 1u << shift ? u.d - begin : 1u << shift, words = (count + 31) / 32;
    typename Block::template each<uint32_t> places;
    mark_rows(b, s.row, u, begin, count, [](uint32_t, uint64_t) {});
    b.phase([&](unsigned lane) { places[lane] = lane < words ? static_cast<uint32_t>(popcount(s.row[lane])) : 0; });
    const uint32_t all = b.exclusive_sum(places);
    const auto was = static_cast<uint32_t>(note(b, v, tile, all, 0));
    b.phase([&](unsigned lane) {
      uint32_t to = was + places[lane];
      for (uint32_t left = lane < words ? s.row[lane] : 0; left; left &= left - 1) {
        if (to < u.capacity) v.positions()[to] = begin + lane * 32 + static_cast<uint32_t>(countr_zero(left));
        ++to;
      }
    });
  }
};

}  // namespace dr
