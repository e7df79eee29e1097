// A sample of a tensor brackets the r-th magnitude in [lo, hi].
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "primitive/rng.hpp"
#include "sparsify/select_rank_tile.hpp"

namespace dr {

// The margin of a rank in a sample: six standard deviations, plus a constant for small ranks.
DR_HD inline double bracket_slack(double expected) { return 6 * sqrt(expected) + 4; }

template <class Bits, size_t N>
struct select_bracket {
  static constexpr const char* name = "select_bracket";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  struct shared {
    alignas(16) uint32_t word[select_sample_bins];
  };
  static constexpr uint32_t sample_shift = key_bits<Bits> - 13;
  static_assert(select_sample_bins == 1u << 13);

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    if (u.row->fault.code != DR_OK) return;
    const view v = view::of(a, u);
    sample(b, s, v, b.index() - u.first_tile);
    if (last_of(b, &v.state().done_bracket, u.sample_blocks)) set_bracket(b, v);
  }

  template <class Block>
  DR_HD static void sample(Block& b, shared& s, const view& v, uint32_t tile) {
    constexpr uint32_t pieces = sample_tile / sample_piece;
    const select_unit& u = v.unit;
    const uint32_t stratum = u.d / (u.sample_blocks * pieces), room = stratum - sample_piece + 1;
    constexpr uint32_t own = sample_tile / lanes, vectors = select_sample_bins / 4;
    struct part {
      uint32_t bin[own];
    };
    typename Block::template each<part> mine;
    b.phase([&](unsigned lane) {
      uint32_t at[own];  // all loads are on their way before the first value is used
      Bits value[own];
#pragma unroll
      for (uint32_t k = 0; k < own; ++k) {
        const uint32_t i = k * lanes + lane, piece = tile * pieces + i / sample_piece;
        // A piece at a random position in every stratum, so that periodic data does not bias the sample.
        const uint64_t chance = mix64(piece + golden) >> 32;
        at[k] = piece * stratum + static_cast<uint32_t>(chance * room >> 32) + i % sample_piece;
        value[k] = at[k] < u.d ? *place_of(u, static_cast<const Bits*>(u.values), at[k]) : Bits{0};
      }
      for (uint32_t i = lane; i < vectors; i += lanes) reinterpret_cast<vector16*>(s.word)[i] = {};
      if (u.residual) {
        float before[own];
#pragma unroll
        for (uint32_t k = 0; k < own; ++k) before[k] = at[k] < u.d ? *place_of(u, u.residual, at[k]) : 0;
#pragma unroll
        for (uint32_t k = 0; k < own; ++k)
          value[k] = rounded_value<Bits>(v.common, accumulated(v.common, before[k], value[k]));
      }
#pragma unroll
      for (uint32_t k = 0; k < own; ++k)
        mine[lane].bin[k] = at[k] < u.d ? key_of(value[k]) >> sample_shift : select_sample_bins;
    });
    b.phase([&](unsigned lane) {
#pragma unroll
      for (uint32_t k = 0; k < own; ++k)
        if (mine[lane].bin[k] < select_sample_bins) atomic_add(s.word + mine[lane].bin[k], 1u);
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < vectors; i += lanes) {
        const vector16 x = reinterpret_cast<const vector16*>(s.word)[i];
#pragma unroll
        for (uint32_t c = 0; c < 4; ++c)
          if (x.word[c]) atomic_add(v.sample() + 4 * i + c, x.word[c]);
      }
    });
  }

  // Element i of the unit: of the values, or of the residual.
  template <class T>
  DR_HD static const T* place_of(const select_unit& u, const T* of_all, uint32_t i) {
    if (!u.flat()) return of_all + i;
    const flat_piece& p = u.bucket().at(i);
    if constexpr (std::is_same_v<T, float>)
      return p.residual + (i - p.first);
    else
      return static_cast<const T*>(p.values) + (i - p.first);
  }

  // lo and hi around the sample's expected rank.
  template <class Block>
  DR_HD static void set_bracket(Block& b, const view& v) {
    const select_unit& u = v.unit;
    const double size = static_cast<double>(u.sample_blocks) * sample_tile,
                 expected = size * static_cast<double>(u.target) / static_cast<double>(u.d);
    const double slack = bracket_slack(expected);
    const bool has_high = expected > slack + 1;
    const uint32_t* const bins = v.sample();
    rank_place low, high;
    find_ranks<select_sample_bins>(b, bins, static_cast<uint32_t>(expected + slack),
                                   has_high ? static_cast<uint32_t>(expected - slack) : 1, low, high);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      select_state& s = v.state();
      s.lo = low.rank && low.bin ? inside(bins, low, true) : 1;  // (zeros are in bin 0)
      s.hi = has_high && high.rank ? inside(bins, high, false) : magnitude_mask<Bits>;
      if (s.hi < s.lo) s.hi = s.lo;
      while ((s.hi - s.lo) >> s.shift >= select_bins) ++s.shift;
    });
  }

  // A key in the bin, interpolated by the rank from the top; `below`: lower by a 32nd of the bin.
  DR_HD static uint32_t inside(const uint32_t* bins, const rank_place& p, bool below) {
    constexpr uint32_t width = 1u << sample_shift, margin = width / 32;
    const auto down = static_cast<uint32_t>(uint64_t{width} * p.rank / bins[p.bin]);
    const uint32_t top = (p.bin << sample_shift) + (width - 1);
    if (below) return top - (down + margin < width - 1 ? down + margin : width - 1);
    return top - (down > margin + 1 ? down - margin - 1 : 0);
  }
};

}  // namespace dr
