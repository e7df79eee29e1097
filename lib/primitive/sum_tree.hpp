// One order of addition for every sum that decides a byte: tiles of 1024 are halved pairwise, tiles are added in order.
// Zero padding adds nothing, so a short tile may start from the smallest power of two that holds it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"
#include "primitive/bits.hpp"

namespace dr {

inline constexpr size_t sum_tile = 1024;

// Σ term(i), i < n, in f64.
template <class F>
DR_HD double tree_sum(uint64_t n, F&& term) {
  double total = 0;
  double tile[sum_tile];
  for (uint64_t begin = 0; begin < n; begin += sum_tile) {
    const size_t length = n - begin < sum_tile ? static_cast<size_t>(n - begin) : sum_tile;
    const size_t padded = bit_ceil(length);
    for (size_t i = 0; i < length; ++i) tile[i] = term(begin + i);
    for (size_t i = length; i < padded; ++i) tile[i] = 0;
    for (size_t h = padded / 2; h > 0; h /= 2)
      for (size_t i = 0; i < h; ++i) tile[i] += tile[i + h];
    total += tile[0];
  }
  return total;
}

}  // namespace dr
