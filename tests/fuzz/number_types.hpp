// Numbers of f32, f16 and bf16 as their formats have them, for oracles that share nothing with the library.
#pragma once

#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "little_endian.hpp"

namespace number_types {

inline float get(const uint8_t* at, dr_dtype type) {
  if (type == DR_F32 || type == DR_BF16) {
    const auto bits =
        static_cast<uint32_t>(type == DR_F32 ? little_endian::number(at, 4) : little_endian::number(at, 2) << 16);
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  const auto half = static_cast<uint32_t>(little_endian::number(at, 2));
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
                                 : std::ldexp(static_cast<float>(exponent ? 1024 + mantissa : mantissa),
                                              std::max(exponent, 1) - 25);
  return half >> 15 ? -x : x;
}
inline void put(uint8_t* at, dr_dtype type, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (type == DR_F32) return little_endian::put(at, bits, 4);
  if (type == DR_BF16)
    return little_endian::put(at, std::isnan(x) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16, 2);
  uint32_t half = std::isnan(x) ? 0x7e00 : 0x7c00;
  if (const float size = std::abs(x); size < 65520) {
    int exponent;
    const float part = std::frexp(size, &exponent);  // [1/2, 1)
    half = size < 0x1p-14f
               ? static_cast<uint32_t>(std::lrint(std::ldexp(size, 24)))
               : static_cast<uint32_t>((exponent + 13) << 10) + static_cast<uint32_t>(std::lrint(std::ldexp(part, 11)));
  }
  little_endian::put(at, half | bits >> 31 << 15, 2);
}
inline size_t size_of(dr_dtype type) { return type == DR_F32 ? 4 : 2; }

}  // namespace number_types
