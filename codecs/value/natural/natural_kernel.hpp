// Natural compression (Horváth et al. 2019): a sign and a power of two a value (layout: SPEC.md).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/largest.hpp"
#include "primitive/rng.hpp"
#include "primitive/value_type.hpp"

namespace dr {

enum natural_rounding : uint32_t { natural_stochastic, natural_nearest };

// Code c > 0 is the power whose exponent field in f32 is highest - 127 + c. The least `highest` has f32's smallest
// number, 2^-149, as code 1; the largest has 2^128 as code 127, which is decoded as the largest number.
inline constexpr uint32_t natural_highest_least = 104, natural_highest_most = 255, natural_codes = 128;
// To this, magnitudes are rounded up from the middle.
inline constexpr uint32_t natural_half = 1u << 22;

// 2^exponent in f32, exactly, for -149 to 127.
inline float natural_power(int exponent) {
  return static_cast<float>(std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52));
}

// Of values with this largest magnitude: that may be rounded up.
template <class T>
uint32_t natural_highest(typename T::bits largest) {
  return std::max(natural_highest_least, (std::bit_cast<uint32_t>(T::to_f32(largest)) >> 23) + 1);
}
// Magnitudes times this have their code as their exponent field, rounded down: the smallest power becomes 2^-126, and
// below it multiplication rounds to 2^-23 of that.
inline float natural_scale(uint32_t highest) { return natural_power(127 - static_cast<int>(highest)); }

// up: 23 bits. The code is that of the next power if the mantissa, a fraction of 2^23, and they reach 1: uniform bits
// round up with the probability of the fraction, natural_half rounds to nearest.
inline uint8_t natural_code(float value, float scale, uint32_t up) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(bits & 0x7fffffff) * scale);
  return static_cast<uint8_t>((scaled + up) >> 23 | (bits >> 31) << 7);
}
// Of the value at a position: a draw serves two.
inline uint32_t natural_up(uint64_t key, uint64_t position) {
  return static_cast<uint32_t>(draw(key, position / 2) >> 32 * (position % 2)) >> 9;
}

// Codes of values [first, n).
template <class T>
void natural_codes_of(const typename T::bits* values, uint64_t first, uint64_t n, float scale,
                      natural_rounding rounding, uint64_t key, uint8_t* codes) {
  for (uint64_t i = first; i < n; ++i)
    codes[i] = natural_code(T::to_f32(values[i]), scale,
                            rounding == natural_nearest ? uint32_t{natural_half} : natural_up(key, i));
}

// Writes n + 1 bytes.
template <class T>
void natural_encode_scalar(const typename T::bits* values, uint64_t n, natural_rounding rounding, uint64_t key,
                           uint8_t* out) {
  const uint32_t highest = natural_highest<T>(largest_magnitude_with<T>(values, n));
  out[0] = static_cast<uint8_t>(highest);
  natural_codes_of<T>(values, 0, n, natural_scale(highest), rounding, key, out + 1);
}

// Per byte of a payload.
template <class T>
struct natural_table {
  typename T::bits value[2 * natural_codes];

  explicit natural_table(uint32_t highest) {
    for (uint32_t c = 0; c < natural_codes; ++c) {
      const uint64_t exponent = 1023 - 254 + highest + c;  // of f64
      const double magnitude = c ? std::bit_cast<double>(exponent << 52) : 0;
      value[c] = T::from_f64(saturate<T>(magnitude));
      value[c + natural_codes] = T::from_f64(-saturate<T>(magnitude));
    }
  }
};

template <class T>
void natural_decode_scalar(const uint8_t* codes, uint64_t n, uint32_t highest, typename T::bits* out) {
  const natural_table<T> table(highest);
  for (uint64_t i = 0; i < n; ++i) out[i] = table.value[codes[i]];
}

template <class T>
void natural_encode_avx2(const typename T::bits* values, uint64_t n, natural_rounding rounding, uint64_t key,
                         uint8_t* out);
template <class T>
void natural_encode_avx512(const typename T::bits* values, uint64_t n, natural_rounding rounding, uint64_t key,
                           uint8_t* out);
void natural_decode_avx2(const uint8_t* codes, uint64_t n, uint32_t highest, uint32_t* out);
void natural_decode_avx512(const uint8_t* codes, uint64_t n, uint32_t highest, uint32_t* out);

template <class T>
inline constexpr cpu_table<decltype(&natural_encode_scalar<T>)> natural_encode{
    natural_encode_scalar<T>, on_x86(natural_encode_avx2<T>), on_x86(natural_encode_avx512<T>)};
// Of 16 bits the look-up of scalar is the fastest.
template <class T>
inline constexpr cpu_table<decltype(&natural_decode_scalar<T>)> natural_decode{natural_decode_scalar<T>};
template <>
inline constexpr cpu_table<decltype(&natural_decode_scalar<f32_type>)> natural_decode<f32_type>{
    natural_decode_scalar<f32_type>, on_x86(natural_decode_avx2), on_x86(natural_decode_avx512)};

}  // namespace dr
