// f16 and bf16 as bits. Every rounding is to nearest, ties to even, and happens once, also from f64.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

DR_HD inline float f16_to_f32(uint16_t h) {
#if defined(__CUDA_ARCH__)  // fewer registers
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
#else
  // A subnormal is the excess over 2^-14 of a number. No branch: small gradients have both kinds.
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, m = h & 0x7fffu, moved = (m << 13) + 0x38000000;
  const float beyond = std::bit_cast<float>(moved + 0x00800000) - 0x1p-14f;
  const uint32_t wide = m < 0x400 ? std::bit_cast<uint32_t>(beyond) : m < 0x7c00 ? moved : moved + 0x38000000;
  return std::bit_cast<float>(sign | wide);
#endif
}
DR_HD inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

// Rounds to a small float of `mantissa_bits` and `exponent_bits` in integers: no double rounding, no rounding mode.
template <int mantissa_bits, int exponent_bits>
DR_HD inline uint16_t round_to_half(double value) {
  constexpr int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 63 << 15);
  const int exponent = static_cast<int>((bits >> 52) & 0x7ff);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 0x7ff) {  // infinity, or NaN: quiet, with the top of its payload
    const uint64_t payload = mantissa ? (mantissa >> (52 - mantissa_bits)) | (uint64_t{1} << (mantissa_bits - 1)) : 0;
    return static_cast<uint16_t>(sign | top << mantissa_bits | payload);
  }
  int e = exponent - 1023 + bias;
  if (e < -mantissa_bits) return sign;  // below half of the smallest subnormal (f64 subnormals too)
  mantissa |= uint64_t{1} << 52;
  int shift = 52 - mantissa_bits;
  if (e < 1) {
    shift += 1 - e;
    e = 0;
  } else {
    mantissa &= (uint64_t{1} << 52) - 1;
  }
  const uint64_t half = uint64_t{1} << (shift - 1), rest = mantissa & (2 * half - 1);
  uint64_t rounded = (static_cast<uint64_t>(e) << mantissa_bits) + (mantissa >> shift);
  rounded += rest > half || (rest == half && (rounded & 1));
  if (rounded >= static_cast<uint64_t>(top) << mantissa_bits) rounded = static_cast<uint64_t>(top) << mantissa_bits;
  return static_cast<uint16_t>(sign | rounded);
}
DR_HD inline uint16_t f64_to_f16(double value) { return round_to_half<10, 5>(value); }
DR_HD inline uint16_t f64_to_bf16(double value) { return round_to_half<7, 8>(value); }

// From f32, rounded once; NaN become quiet NaN.
DR_HD inline uint16_t f32_to_f16(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x), sign = b >> 16 & 0x8000, m = b & 0x7fffffff;
  if (m > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (m >> 13 & 0x3ff));
  if (m >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // from 65520 on
  if (m < 0x38800000)  // subnormal: multiples of 2^-24, as the bits of floats in [0.5, 1) are
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(m) + 0.5f) - 0x3f000000));
  return static_cast<uint16_t>(sign | (m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13);
}
DR_HD inline uint16_t f32_to_bf16(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x), sign = b >> 16 & 0x8000, m = b & 0x7fffffff;
  if (m > 0x7f800000) return static_cast<uint16_t>(sign | 0x7fc0 | m >> 16);
  return static_cast<uint16_t>(sign | (m + 0x7fff + (m >> 16 & 1)) >> 16);
}
// From f32, rounded once. Finite values stay finite: values above the largest number become that.
DR_HD inline uint16_t f32_to_f16_finite(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x), sign = b >> 16 & 0x8000;
  uint32_t m = b & 0x7fffffff;
  if (m > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (m >> 13 & 0x3ff));  // NaN, quiet
  if (m == 0x7f800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (m > 0x477fe000) m = 0x477fe000;  // 65504
  if (m < 0x38800000)                  // subnormal: multiples of 2^-24, as the bits of floats in [0.5, 1) are
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(m) + 0.5f) - 0x3f000000));
  return static_cast<uint16_t>(sign | (m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13);
}
DR_HD inline uint16_t f32_to_bf16_finite(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x), sign = b >> 16 & 0x8000, m = b & 0x7fffffff;
  if (m > 0x7f800000) return static_cast<uint16_t>(sign | 0x7fc0 | m >> 16);
  if (m == 0x7f800000) return static_cast<uint16_t>(sign | 0x7f80);
  const uint32_t rounded = (m + 0x7fff + (m >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(sign | (rounded < 0x7f7f ? rounded : 0x7f7f));
}

}  // namespace dr
