#include "sparsify/select.hpp"

#include "sparsify/rank.hpp"

namespace dr {

selection select_largest(uint32_t dtype, const void* values, uint64_t n, uint64_t target) {
  return radix_select(dtype, target, [&](auto&& f) { f(values, n); });
}

uint32_t magnitude_from(uint32_t dtype, double threshold) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    uint32_t low = 1, high = T::infinity;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (double{T::to_f32(static_cast<typename T::bits>(middle))} >= threshold)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  });
}

selection select_from(uint32_t dtype, const void* values, uint64_t n, double threshold) {
  const uint32_t low = magnitude_from(dtype, threshold);
  return {low - 1, 0, select_at(cpu_level::scalar, dtype).count(values, n, low)};
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
  uint64_t count = 0;
  each_nonzero_run(dtype, values, rows, width, [&](uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; ++i) positions[count++] = static_cast<uint32_t>(i);
  });
  return count;
}

}  // namespace dr
