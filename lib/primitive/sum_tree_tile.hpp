// The order of addition of primitive/sum_tree.hpp, for the lanes of a block: many tiles of up to 1024 terms side by
// side.
#pragma once

#include <cstdint>

#include "primitive/sum_tree.hpp"

namespace dr {

inline constexpr uint32_t tree_fold_terms = 8;  // that one lane adds, in registers

// term(0) … term(7), halved pairwise.
template <class F>
DR_HD double tree_fold(F&& term) {
  double a[tree_fold_terms];
  for (uint32_t i = 0; i < tree_fold_terms; ++i) a[i] = term(i);
  for (uint32_t h = tree_fold_terms / 2; h > 0; h /= 2)
    for (uint32_t i = 0; i < h; ++i) a[i] += a[i + h];
  return a[0];
}

// Lanes that share a tile of up to n terms, a power of two: 128 for 1024.
DR_HD constexpr uint32_t tree_lanes(uint32_t n) {
  return n <= tree_fold_terms ? 1 : static_cast<uint32_t>(bit_ceil(n)) / tree_fold_terms;
}

// The sums of Block::lanes / group tiles at once, added as tree_sum does. (Where tree_sum returns +0, a sum may be -0:
// tree_sum begins with 0.)
//   group        tree_lanes(maximum number of terms of a tile)
//   term(t, i)   term i < 8 * group of tile t; 0 past its last, and for tiles that do not exist
//   part         [Block::lanes] in shared memory; part[t * group] is the sum of tile t in the phases that follow
template <class Block, class F>
DR_HD void tree_sums(Block& b, double* part, uint32_t group, F&& term) {
  b.phase([&](unsigned lane) {
    const uint32_t tile = lane >> countr_zero(group), first = lane & (group - 1);
    part[lane] = tree_fold([&](uint32_t i) { return term(tile, first + group * i); });
  });
  // No other lane reads the entries that this one replaces: its terms are `next` apart.
  for (uint32_t left = group; left > 1;) {
    const uint32_t next = left > tree_fold_terms ? left / tree_fold_terms : 1;
    b.phase([&](unsigned lane) {
      const uint32_t first = lane & (group - 1);
      if (first >= next) return;
      part[lane] = tree_fold([&](uint32_t i) { return first + next * i < left ? part[lane + next * i] : 0.0; });
    });
    left = next;
  }
}

// The sums of the tiles of sum_tree that a block has, to `sums`: of term(i), i < length. part: as above.
template <class Block, class F>
DR_HD void put_tile_sums(Block& b, double* part, const uint32_t& length, double* sums, F&& term) {
  constexpr uint32_t group = tree_lanes(sum_tile), beside = Block::lanes / group;
  for (uint32_t first = 0; first * sum_tile < length; first += beside) {
    tree_sums(b, part, group, [&](uint32_t t, uint32_t i) {
      const uint32_t at = (first + t) * static_cast<uint32_t>(sum_tile) + i;
      return at < length ? term(at) : 0.0;
    });
    b.phase([&](unsigned lane) {
      if (lane < beside && (first + lane) * sum_tile < length) sums[first + lane] = part[lane * group];
    });
  }
}

// The sum over all tiles, added in order, by one lane: `total`, in shared memory, in the phases that follow.
template <class Block>
DR_HD void add_tile_sums(Block& b, double* part, double& total, const double* sums, const uint64_t& tiles) {
  for (uint64_t first = 0; first < tiles; first += Block::lanes) {
    const auto some = static_cast<uint32_t>(tiles - first < Block::lanes ? tiles - first : Block::lanes);
    b.phase([&](unsigned lane) {
      if (lane < some) part[lane] = sums[first + lane];
    });
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      double sum = first == 0 ? 0 : total;
      for (uint32_t i = 0; i < some; ++i) sum += part[i];
      total = sum;
    });
  }
}

}  // namespace dr
