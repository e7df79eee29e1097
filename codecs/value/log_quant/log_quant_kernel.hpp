// Levels that are equally spaced on a logarithmic scale. No logarithm: powers of a root of the range, by square roots,
// which IEEE 754 rounds exactly (layout: SPEC.md).
#pragma once

#include <cmath>
#include <cstdint>

#include "codecs/family/levels/table_levels.hpp"

namespace dr {

inline constexpr unsigned log_bits_max = 6;

struct log_levels {
  level_bounds bounds;
  level_table table;
};

// 2^bits levels from `low` to `high`, 0 < low <= high, or both 0.
inline log_levels log_levels_of(float low, float high, unsigned bits) {
  log_levels l;
  l.table.count = l.bounds.count = 1u << bits;
  double g = low < high ? double{high} / double{low} : 1;
  for (unsigned i = 0; i <= bits; ++i) g = std::sqrt(g);
  double p = low;
  for (unsigned i = 0; i < l.table.count; ++i) {
    p *= g;
    l.table.of[i] = std::bit_cast<uint32_t>(static_cast<float>(p));
    p *= g;
    l.bounds.of[i] = std::bit_cast<uint32_t>(static_cast<float>(p));
  }
  for (unsigned i = l.table.count - 1; i < table_levels_max; ++i) l.bounds.of[i] = ~0u;
  return l;
}

}  // namespace dr
