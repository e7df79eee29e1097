// A bit per element of the universe (SPEC.md).
#pragma once

#include "codecs/family/ones/ones.hpp"

namespace dr {

//   x [n] strictly ascending, < universe     out: ceil(universe / 8) bytes, all written
inline void bitmap_encode(const uint32_t* x, uint64_t n, uint64_t universe, cpu_level level, uint8_t* out) {
  set_ones<false>.at(level)(x, n, 0, out, ceil_div(universe, 8));
}

//   in: ceil(universe / 8) bytes     x [n]
// False if there are not n ones, or one is not below the universe.
inline bool bitmap_decode(const uint8_t* in, uint64_t n, uint64_t universe, cpu_level level, uint32_t* x) {
  const uint64_t size = ceil_div(universe, 8);
  // The last byte may be another than that of which the padding was looked at, where the frame changes meanwhile.
  return padding_is_zero(in, universe) && count_ones.at(level)(in, size) == n &&
         list_ones<false>.at(level)(in, 0, size, 0, n, x) == n && (n == 0 || x[n - 1] < universe);
}

}  // namespace dr
