// An element of a tensor as bits and as a number.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "inputs.hpp"

namespace dr::compare {

inline size_t size_of(dtype type) { return type == dtype::f32 ? 4 : 2; }
inline const char* name_of(dtype type) { return type == dtype::f32 ? "f32" : type == dtype::f16 ? "f16" : "bf16"; }

inline uint32_t bits_at(dtype type, std::span<const std::byte> data, uint64_t i) {
  if (type == dtype::f32) {
    uint32_t bits;
    std::memcpy(&bits, data.data() + 4 * i, 4);
    return bits;
  }
  uint16_t bits;
  std::memcpy(&bits, data.data() + 2 * i, 2);
  return bits;
}

inline uint32_t magnitude_of(dtype type, uint32_t bits) { return bits & (type == dtype::f32 ? 0x7fffffffu : 0x7fffu); }

inline double f16_value(uint32_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  double v = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  if (exponent == 31) v = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  return bits & 0x8000 ? -v : v;
}

inline double value_of(dtype type, uint32_t bits) {
  if (type == dtype::f16) return f16_value(bits);
  return std::bit_cast<float>(type == dtype::f32 ? bits : bits << 16);
}

}  // namespace dr::compare
