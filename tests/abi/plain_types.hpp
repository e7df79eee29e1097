// Numbers of the three types, converted in the plainest way: what the library's conversions are compared with.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "client.hpp"

namespace abi {

inline double half_number(uint32_t bits) {  // of f16, finite and positive
  const int exponent = static_cast<int>(bits >> 10);
  return exponent ? std::ldexp(1024 + (bits & 1023), exponent - 25) : std::ldexp(bits & 1023, -24);
}

inline float to_float(dr_dtype dtype, uint32_t bits) {
  if (dtype == DR_F32) return std::bit_cast<float>(bits);
  if (dtype == DR_BF16) return std::bit_cast<float>(bits << 16);
  const uint32_t sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 1023) << 13);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(half_number(magnitude))));
}

// To nearest, ties to even; beyond the largest: infinity. A NaN keeps its sign and the top of its payload, and is quiet.
inline uint32_t from_float(dr_dtype dtype, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000;
  if (dtype == DR_F32) return bits;
  if (dtype == DR_BF16) {
    if (std::isnan(x)) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  if (std::isnan(x)) return sign | 0x7e00 | (bits >> 13 & 0x1ff);
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= 65520) return sign | 0x7c00;
  uint32_t low = 0, high = 0x7c00;  // the largest that is not above
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (half_number(middle) <= magnitude ? low : high) = middle;
  }
  const double below = half_number(low), above = low == 0x7bff ? 65536 : half_number(low + 1);
  const double down = magnitude - below, up = above - magnitude;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : low + 1);
}

// Values of any type.
struct numbers {
  dr_dtype dtype;
  std::vector<uint32_t> bits;

  explicit numbers(dr_dtype type, size_t n = 0)
      : dtype(type), bits((n + 1) / (type == DR_F32 ? 1 : 2) + 1, 0xabababab) {}
  void set(size_t i, float x) { set_bits(i, from_float(dtype, x)); }
  void set_bits(size_t i, uint32_t b) {
    if (dtype == DR_F32)
      bits[i] = b;
    else
      std::memcpy(reinterpret_cast<char*>(bits.data()) + 2 * i, &b, 2);
  }
  uint32_t at(size_t i) const {
    if (dtype == DR_F32) return bits[i];
    uint16_t b;
    std::memcpy(&b, reinterpret_cast<const char*>(bits.data()) + 2 * i, 2);
    return b;
  }
};

}  // namespace abi
