// Shared by the codecs of quantised values: blocks of values as floats and back, and the payload of kind 0, the raw
// values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "codecs/family/levels/split_levels.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_rows.hpp"

namespace dr {

inline constexpr uint8_t kind_raw = 0,
                         kind_levels = 1;  // the payload's first byte; the latter's upper bits are the codec's

struct magnitude_range {
  uint32_t least = ~0u, largest = 0;  // bits of a float without sign
};
inline magnitude_range range_of_scalar(const uint32_t* values, size_t n) {
  magnitude_range range;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t m = values[i] & f32_type::magnitude_mask;
    if (m < range.least) range.least = m;
    if (m > range.largest) range.largest = m;
  }
  return range;
}
magnitude_range range_of_avx2(const uint32_t* values, size_t n);
magnitude_range range_of_avx512(const uint32_t* values, size_t n);
inline constexpr cpu_table<decltype(&range_of_scalar)> range_of{range_of_scalar, on_x86(range_of_avx2),
                                                                on_x86(range_of_avx512)};

// Calls f(first, length, float bits) per block of n values.
template <class T, class F>
void each_value_block(const typename T::bits* values, uint64_t n, F&& f) {
  for (uint64_t first = 0; first < n; first += level_block) {
    const auto length = static_cast<size_t>(n - first < level_block ? n - first : level_block);
    if constexpr (std::is_same_v<T, f32_type>) {
      f(first, length, values + first);
    } else {
      uint32_t wide[level_block];
      widen_values<T>.best()(values + first, length, wide);
      f(first, length, wide);
    }
  }
}

template <class T>
magnitude_range range_of_values(const typename T::bits* values, uint64_t n) {
  magnitude_range range;
  each_value_block<T>(values, n, [&](uint64_t, size_t length, const uint32_t* v) {
    const magnitude_range r = range_of.best()(v, length);
    range = {r.least < range.least ? r.least : range.least, r.largest > range.largest ? r.largest : range.largest};
  });
  return range;
}

// Σ term(i, float bits of value i), in the order of the sum tree.
template <class T, class F>
double sum_of_values(const typename T::bits* values, uint64_t n, F&& term) {
  double sum = 0;
  each_value_block<T>(values, n, [&](uint64_t at, size_t length, const uint32_t* v) {
    for (size_t first = 0; first < length; first += sum_tile)
      sum +=
          tree_sum(std::min(sum_tile, length - first), [&](uint64_t i) { return term(at + first + i, v[first + i]); });
  });
  return sum;
}

// Floats rounded to the type; larger ones become its largest number.
template <class T>
void narrow_values(const uint32_t* wide, size_t n, typename T::bits* values) {
  round_values_at<T>.best()(reinterpret_cast<const float*>(wide), n, values);
}

// Calls restore(floats) for room of n <= level_block floats that become values.
template <class T, class F>
void restore_values(size_t n, typename T::bits* values, F&& restore) {
  if constexpr (std::is_same_v<T, f32_type>) {
    restore(values);
  } else {
    uint32_t wide[level_block];
    restore(wide);
    narrow_values<T>(wide, n, values);
  }
}

// ---- No worse than one magnitude ---------------------------------------------------------------------------

// The best single magnitude that the type has, for values with signs of their own, and its squared error.
struct one_magnitude {
  float number;
  double error;
};
template <class T>
one_magnitude one_magnitude_of(const typename T::bits* values, uint64_t n) {
  const auto magnitude_of = [](uint32_t v) { return std::fabs(double{std::bit_cast<float>(v)}); };
  const double sum = sum_of_values<T>(values, n, [&](uint64_t, uint32_t v) { return magnitude_of(v); });
  const float number = T::to_f32(T::from_f64(saturate<T>(sum / static_cast<double>(n))));
  const double error = sum_of_values<T>(values, n, [&](uint64_t, uint32_t v) {
    const double e = magnitude_of(v) - double{number};
    return e * e;
  });
  return {number, error};
}

// ---- Payloads ----------------------------------------------------------------------------------------------

template <class T>
uint64_t raw_payload(const typename T::bits* values, uint64_t n, uint8_t* out) {
  out[0] = kind_raw;
  std::memcpy(out + 1, values, n * sizeof *values);
  return 1 + n * sizeof *values;
}
// False, and *where, if the size is not that of n values or one is not finite.
template <class T>
bool read_raw_payload(const uint8_t* in, uint64_t size, uint64_t n, typename T::bits* values, uint64_t* where) {
  *where = size;
  if (size != 1 + n * sizeof *values) return false;
  std::memcpy(values, in + 1, n * sizeof *values);
  for (uint64_t i = 0; i < n; ++i) {
    *where = 1 + i * sizeof *values;
    if (!is_finite<T>(values[i])) return false;
  }
  return true;
}

}  // namespace dr
