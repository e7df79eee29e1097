// The magnitude of a rank: in a list of keys, and among all values of a source.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sparsify/select.hpp"

namespace dr {

inline constexpr uint32_t magnitudes_end = 0x80000000;

struct ranked {
  uint32_t key;
  uint64_t above;  // keys above it
};

// The rank-th largest of n keys, all in [low, high), 1 <= rank <= n. scratch [n], perhaps the keys themselves.
ranked find_rank(const select_kernels& k, const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low, uint32_t high,
                 uint32_t* scratch);

// Counts the digits at `shift` of all magnitudes whose bits above the digit are `prefix`.
template <class T>
void histogram(const typename T::bits* v, uint64_t n, unsigned shift, unsigned bits, uint32_t prefix, uint64_t* bins) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t key = magnitude<T>(v[i]);
    if (key >> shift >> bits == prefix) ++bins[key >> shift & ((1u << bits) - 1)];
  }
}

// each(f) calls f(values, n) for all runs of the values, in any order.
template <class Each>
selection radix_select(uint32_t dtype, uint64_t target, Each&& each) {
  return with_value_type(dtype, [&](auto type) -> selection {
    using T = decltype(type);
    // From the top: the digit in which the target falls, then the digits below it.
    constexpr unsigned digits[] = {11, 10, 10};
    uint64_t bins[2048];
    unsigned shift = 31;
    uint32_t prefix = 0;
    uint64_t above = 0;  // magnitudes above the prefix
    for (const unsigned bits : digits) {
      shift -= bits;
      std::fill(bins, bins + (1u << bits), 0);
      each([&](const void* values, uint64_t n) {
        histogram<T>(static_cast<const typename T::bits*>(values), n, shift, bits, prefix, bins);
      });
      uint32_t digit = (1u << bits) - 1;
      while (digit > 0 && above + bins[digit] < target) above += bins[digit--];
      prefix = prefix << bits | digit;
      if (prefix == 0 && shift == 0) return {0, 0, above};  // fewer nonzeros than `target`: all of them
      if (shift == 0) return {prefix, target - above, target};
    }
    return {0, 0, 0};
  });
}

}  // namespace dr
