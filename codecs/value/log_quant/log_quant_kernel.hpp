// Levels that are equally spaced on a logarithmic scale. No logarithm: powers of a root of the range, by square roots,
// which IEEE 754 rounds exactly (layout: SPEC.md).
#pragma once

#include <cmath>
#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned log_bits_max = 6;
// The kind: with Huffman, with a number of its own for level 0, bits; of other kinds than raw values.
inline constexpr unsigned log_huffman_bit = 2, log_lowest_bit = 4, log_bits_shift = 3;
inline constexpr unsigned log_head = 9;  // bytes: kind, low, high; and 4 where level 0 has a number of its own

// From `low` on levels are apart. least, high: the smallest and the largest magnitude.
DR_HD inline float log_quant_low(float least, float high, unsigned range) {
  if (!(high > 0)) return 0;
  // The smallest number of f32, where the quotient is below it.
  const double octaves = std::bit_cast<double>(uint64_t{1023 - range} << 52);  // 2^-range
  const auto floor = static_cast<float>(double{high} * octaves);
  const float above = least > floor ? least : floor;
  return above > FLT_TRUE_MIN ? above : FLT_TRUE_MIN;
}

// f(i, number, bound) of each of 2^bits levels from `low` to `high`, 0 < low <= high, or both 0. bound: the least
// magnitude above the level.
template <class F>
DR_HD void each_log_level(float low, float high, unsigned bits, F&& f) {
  double g = low < high ? double{high} / double{low} : 1;
  for (unsigned i = 0; i <= bits; ++i) g = std::sqrt(g);
  double p = low;
  for (unsigned i = 0; i < 1u << bits; ++i) {
    p *= g;
    const auto number = static_cast<float>(p);
    p *= g;
    f(i, number, static_cast<float>(p));
  }
}

}  // namespace dr
