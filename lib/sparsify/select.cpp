#include "sparsify/select.hpp"

#include <algorithm>
#include <cmath>

namespace dr {

uint64_t topr_target(double ratio, double count, uint64_t d) {
  const double wanted = count > 0 ? count : std::floor(ratio * static_cast<double>(d) + 1e-9);
  return wanted >= static_cast<double>(d) ? d : std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
}

namespace {

// Counts the digits at `shift` of all magnitudes whose bits above the digit are `prefix`.
template <class T>
void histogram(const typename T::bits* v, uint64_t n, unsigned shift, unsigned bits, uint32_t prefix, uint64_t* bins) {
  std::fill(bins, bins + (1u << bits), 0);
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t key = magnitude<T>(v[i]);
    if (key >> shift >> bits == prefix) ++bins[key >> shift & ((1u << bits) - 1)];
  }
}

}  // namespace

selection select_largest(uint32_t dtype, const void* values, uint64_t n, uint64_t target) {
  return with_value_type(dtype, [&](auto type) -> selection {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    // From the top: the digit in which the target falls, then the digits below it.
    constexpr unsigned digits[] = {11, 10, 10};
    uint64_t bins[2048];
    unsigned shift = 31;
    uint32_t prefix = 0;
    uint64_t above = 0;  // magnitudes above the prefix
    for (const unsigned bits : digits) {
      shift -= bits;
      histogram<T>(v, n, shift, bits, prefix, bins);
      uint32_t digit = (1u << bits) - 1;
      while (digit > 0 && above + bins[digit] < target) above += bins[digit--];
      prefix = prefix << bits | digit;
      if (prefix == 0 && shift == 0) return {0, 0, above};  // fewer nonzeros than wanted: all of them
      if (shift == 0) return {prefix, target - above, target};
    }
    return {0, 0, 0};
  });
}

selection select_from(uint32_t dtype, const void* values, uint64_t n, double threshold) {
  return with_value_type(dtype, [&](auto type) -> selection {
    using T = decltype(type);
    uint32_t low = 1, high = T::infinity;  // the smallest magnitude that is at least `threshold`; infinity is
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (double{T::to_f32(static_cast<typename T::bits>(middle))} >= threshold)
        high = middle;
      else
        low = middle + 1;
    }
    const auto* v = static_cast<const typename T::bits*>(values);
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; ++i) kept += magnitude<T>(v[i]) >= low;
    return {low - 1, 0, kept};
  });
}

uint64_t compact_selected(uint32_t dtype, const void* values, uint64_t n, selection& s, uint32_t* positions) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t key = magnitude<T>(v[i]);
      if (key < s.above || (key == s.above && s.ties == 0)) continue;
      s.ties -= key == s.above;
      positions[count++] = static_cast<uint32_t>(i);
    }
    return count;
  });
}

uint64_t compact_rows(uint32_t dtype, const void* values, uint64_t rows, uint32_t width, uint32_t* positions) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    uint64_t count = 0;
    for (uint64_t i = 0; i < rows; ++i) {
      uint32_t any = 0;
      for (uint32_t w = 0; w < width; ++w) any |= magnitude<T>(v[i * width + w]);
      if (any) positions[count++] = static_cast<uint32_t>(i);
    }
    return count;
  });
}

}  // namespace dr
