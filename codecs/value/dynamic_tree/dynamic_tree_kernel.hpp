// Dettmers' 8-bit dynamic tree (2015): a scale, then sign, decade and fraction per value (layout: SPEC.md).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/largest.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t dynamic_tree_codes = 128;

// Of a code's seven bits, k zeros, a one, then f = 6 - k bits j: the middle of the j-th of 2^f parts of [0.1, 1), times
// 10^-k. Numerator and denominator are integers, so it is rounded once.
constexpr double dynamic_tree_entry(uint32_t code) {
  if (code == 0) return 0;
  const auto f = uint32_t{bit_width(code)} - 1, j = code - (1u << f);
  double power = 10;
  for (uint32_t k = f; k < 6; ++k) power *= 10;
  const double parts = 2 << f;
  return (parts + 9 * (2 * j + 1)) / (power * parts);
}
inline constexpr auto dynamic_tree_entries = [] {
  std::array<double, dynamic_tree_codes> table{};
  for (uint32_t c = 0; c < dynamic_tree_codes; ++c) table[c] = dynamic_tree_entry(c);
  return table;
}();

// The least f32 that is nearer to entry c than to the one below, or as near. 1 <= c < 128. As bits.
constexpr uint32_t dynamic_tree_least(uint32_t c) {
  const double middle = (dynamic_tree_entries[c - 1] + dynamic_tree_entries[c]) / 2;
  const auto near = static_cast<float>(middle);
  return std::bit_cast<uint32_t>(near) + (static_cast<double>(near) < middle);
}

// The search: y, in f32, has its code by its exponent and the upper six bits of its mantissa, a bucket, but for one
// threshold that may lie in it. That is in the lower 18 bits of an entry, relative to the bucket; above is the code
// below it. Buckets without a threshold have one that nothing reaches.
inline constexpr uint32_t dynamic_tree_shift = 17, dynamic_tree_unreached = 1u << dynamic_tree_shift;
inline constexpr uint32_t dynamic_tree_first = (dynamic_tree_least(1) >> dynamic_tree_shift) - 1;
inline constexpr uint32_t dynamic_tree_buckets = (0x3f800000u >> dynamic_tree_shift) - dynamic_tree_first + 1;
inline constexpr auto dynamic_tree_search = [] {
  std::array<uint32_t, dynamic_tree_buckets> table{};
  uint32_t code = 0;
  for (uint32_t b = 0; b < dynamic_tree_buckets; ++b) {
    const uint32_t begin = (b + dynamic_tree_first) << dynamic_tree_shift;
    table[b] = code << 18 | dynamic_tree_unreached;
    if (code + 1 == dynamic_tree_codes) continue;
    const uint32_t least = dynamic_tree_least(code + 1);
    if (least - begin < dynamic_tree_unreached) table[b] = code++ << 18 | (least - begin);
  }
  return table;
}();
// Two thresholds in one bucket would have left codes over.
static_assert(dynamic_tree_search[dynamic_tree_buckets - 1] >> 18 == dynamic_tree_codes - 1);

inline uint8_t dynamic_tree_code(float value, float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t y = std::bit_cast<uint32_t>(std::bit_cast<float>(bits & 0x7fffffff) / scale);
  const uint32_t bucket = y >> dynamic_tree_shift;
  const uint32_t entry = dynamic_tree_search[bucket > dynamic_tree_first ? bucket - dynamic_tree_first : 0];
  const uint32_t code = (entry >> 18) + ((y & (dynamic_tree_unreached - 1)) >= (entry & 0x3ffff));
  return static_cast<uint8_t>(code | (bits >> 31) << 7);
}

// Of values that are zeros, codes are their signs.
template <class T>
void dynamic_tree_codes_of(const typename T::bits* values, uint64_t first, uint64_t n, float scale, uint8_t* codes) {
  const float by = scale > 0 ? scale : 1;
  for (uint64_t i = first; i < n; ++i) codes[i] = dynamic_tree_code(T::to_f32(values[i]), by);
}

inline constexpr uint64_t dynamic_tree_head = 4;  // bytes of the scale

// Writes n + dynamic_tree_head bytes.
template <class T>
void dynamic_tree_encode_scalar(const typename T::bits* values, uint64_t n, uint8_t* out) {
  const float scale = T::to_f32(largest_magnitude_with<T>(values, n));
  store(out, scale);
  dynamic_tree_codes_of<T>(values, 0, n, scale, out + dynamic_tree_head);
}

// The values of all bytes for a scale.
template <class T>
struct dynamic_tree_values {
  typename T::bits value[2 * dynamic_tree_codes];

  explicit dynamic_tree_values(float scale) {
    for (uint32_t c = 0; c < dynamic_tree_codes; ++c) {
      const double magnitude = saturate<T>(dynamic_tree_entries[c] * static_cast<double>(scale));
      value[c] = T::from_f64(magnitude);
      value[c + dynamic_tree_codes] = T::from_f64(-magnitude);
    }
  }
};

template <class T>
void dynamic_tree_decode_scalar(const uint8_t* codes, uint64_t n, float scale, typename T::bits* out) {
  const dynamic_tree_values<T> table(scale);
  for (uint64_t i = 0; i < n; ++i) out[i] = table.value[codes[i]];
}

template <class T>
void dynamic_tree_encode_avx2(const typename T::bits* values, uint64_t n, uint8_t* out);
void dynamic_tree_decode_avx512(const uint8_t* codes, uint64_t n, float scale, uint32_t* out);

// With AVX-512 it was no faster (bench/kernels).
template <class T>
inline constexpr cpu_table<decltype(&dynamic_tree_encode_scalar<T>)> dynamic_tree_encode{
    dynamic_tree_encode_scalar<T>, on_x86(dynamic_tree_encode_avx2<T>)};
// Of 16 bits, and with AVX2, the look-up of scalar is the fastest.
template <class T>
inline constexpr cpu_table<decltype(&dynamic_tree_decode_scalar<T>)> dynamic_tree_decode{dynamic_tree_decode_scalar<T>};
template <>
inline constexpr cpu_table<decltype(&dynamic_tree_decode_scalar<f32_type>)> dynamic_tree_decode<f32_type>{
    dynamic_tree_decode_scalar<f32_type>, nullptr, on_x86(dynamic_tree_decode_avx512)};

}  // namespace dr
