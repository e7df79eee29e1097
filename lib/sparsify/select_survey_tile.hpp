// A tensor of which all is sent, with its values where they are: the residual is added, rows that are not zero are counted,
// values that are not finite are found. Nothing is listed; values are copied only if they are not contiguous in their type.
#pragma once

#include <cstdint>

#include "sparsify/select_filter_tile.hpp"

namespace dr {

template <class Bits, bool Feedback, size_t N>
struct select_survey {
  static constexpr const char* name = "select_survey";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using filter = select_filter<Bits, Feedback, N>;
  static constexpr uint32_t length = filter::length, vectors = filter::vectors;
  struct shared {
    uint32_t row[select_tile / 2 / 32];  // for rows of several values: a bit per row that is not all zeros
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    // (The row's fault is not tested: other blocks of this launch may raise it.)
    if (u.row->accumulates & state_refused) return;
    uint32_t tile = b.index() - u.first_tile;
    typename Block::template each<uint32_t> counts;
    if (u.columns() == 1)
      values(b, a.common, u, tile, counts);
    else
      rows(b, s, a.common, u, tile, counts);
    const uint32_t all = b.sum(counts);
    b.phase([&](unsigned lane) {
      if (lane != 0 || all == 0) return;
      atomic_add(&u.row->count, uint64_t{all});
      atomic_max(&u.row->support_count, uint64_t{u.d});
      if (u.flags & select_plain) atomic_max(&u.row->size[section_value], uint64_t{u.d} * u.columns() * sizeof(Bits));
    });
  }

  template <class Block, class Counts>
  DR_HD static void values(Block& b, const select_common& c, const select_unit& u, uint32_t tile, Counts& counts) {
    const unit_run r = unit_run::of_tile(u, tile);
    // Vectors are aligned, so the first may begin before the values do.
    const uint64_t skew = reinterpret_cast<uintptr_t>(r.values) % 16 / sizeof(Bits),
                   begin = uint64_t{tile} * select_tile - skew;
    const bool inner = uint64_t{tile} * select_tile >= skew && begin + select_tile <= r.n;
    b.phase([&](unsigned lane) {
      vector16 x[vectors];
#pragma unroll
      for (uint32_t k = 0; k < vectors; ++k) x[k] = filter::read(r, begin + (k * lanes + lane) * length, inner);
      uint32_t count = 0;
#pragma unroll
      for (uint32_t k = 0; k < vectors; ++k) {
        const uint64_t i = begin + (k * lanes + lane) * length;
        if constexpr (Feedback) filter::accumulate(c, r, i, inner, x[k]);
        if (u.selected) copy(u, r, i, inner, x[k]);
        // Of each value, whether it is not zero; above these, whether it is not finite.
        const uint32_t seen = filter::judge(x[k], 1, c.infinity - 1), unfinite = seen >> length;
        count += static_cast<uint32_t>(popcount(seen & ((1u << length) - 1)));
        if (unfinite && u.flags & select_needs_finite)
          refuse_value(u.row, r.first + i + static_cast<uint32_t>(countr_zero(unfinite)));
      }
      counts[lane] = count;
    });
  }

  // A vector of a run, to its place among the values that are sent.
  DR_HD static void copy(const select_unit& u, const unit_run& r, uint64_t i, bool inner, const vector16& x) {
    auto* const to = static_cast<Bits*>(u.selected) + r.first;
    if (inner && reinterpret_cast<uintptr_t>(to + i) % 16 == 0) {
      *reinterpret_cast<vector16*>(to + i) = x;
      return;
    }
#pragma unroll
    for (uint32_t e = 0; e < length; ++e)
      if (inner || i + e < r.n) to[i + e] = element_of<Bits>(x, e);
  }

  template <class Block, class Counts>
  DR_HD static void rows(Block& b, shared& s, const select_common& c, const select_unit& u, uint32_t tile,
                         Counts& counts) {
    const uint32_t shift = tile_shift(u.width), begin = tile << shift;
    const uint32_t count = u.d - begin < 1u << shift ? u.d - begin : 1u << shift;
    filter::mark_rows(b, s.row, u, begin, count, [&](uint32_t key, uint64_t at) { judge_selected(c, u, key, at); });
    b.phase([&](unsigned lane) {
      counts[lane] = lane < (count + 31) / 32 ? static_cast<uint32_t>(popcount(s.row[lane])) : 0;
    });
  }
};

}  // namespace dr
