// The three types of values behind one interface: their bits, their order of magnitude, their numbers.
#pragma once

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "deepreduce/codec.h"
#include "primitive/bits.hpp"
#include "primitive/half.hpp"

namespace dr {

struct f32_type {
  using bits = uint32_t;
  static constexpr bits magnitude_mask = 0x7fffffff, infinity = 0x7f800000;
  static constexpr double largest = FLT_MAX;
  DR_HD static float to_f32(bits b) { return std::bit_cast<float>(b); }
  DR_HD static bits from_f64(double v) { return std::bit_cast<bits>(static_cast<float>(v)); }
};
struct f16_type {
  using bits = uint16_t;
  static constexpr bits magnitude_mask = 0x7fff, infinity = 0x7c00;
  static constexpr double largest = 65504;
  DR_HD static float to_f32(bits b) { return f16_to_f32(b); }
  DR_HD static bits from_f64(double v) { return f64_to_f16(v); }
};
struct bf16_type {
  using bits = uint16_t;
  static constexpr bits magnitude_mask = 0x7fff, infinity = 0x7f80;
  static constexpr double largest = 0x1.fep127;
  DR_HD static float to_f32(bits b) { return bf16_to_f32(b); }
  DR_HD static bits from_f64(double v) { return f64_to_bf16(v); }
};

// Of a type of values; for messages.
inline const char* dtype_name(uint32_t dtype) {
  return dtype == DR_F32 ? "f32" : dtype == DR_F16 ? "f16" : dtype == DR_BF16 ? "bf16" : "?";
}

// Order of magnitude: NaN above infinity, 0 below everything.
template <class T>
DR_HD constexpr uint32_t magnitude(typename T::bits b) {
  return b & T::magnitude_mask;
}
template <class T>
DR_HD constexpr bool is_finite(typename T::bits b) {
  return (b & T::magnitude_mask) < T::infinity;
}

// What arithmetic gave. Processors do not agree about NaN: x86 keeps the sign and payload of an operand, or makes a negative one; a GPU makes
// 0x7fffffff. So a NaN that is computed becomes this one. Values that are copied, or converted, keep theirs.
inline constexpr uint32_t computed_nan = 0x7fc00000;
DR_HD inline float computed(float x) {
#if defined(__CUDA_ARCH__)
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(magnitude<f32_type>(bits) > f32_type::infinity ? uint32_t{computed_nan} : bits);
#else
  return x != x ? std::bit_cast<float>(computed_nan) : x;
#endif
}
// In f64, a NaN with the same sign and payload: what an instruction makes of that is its own.
DR_HD inline double exact_f64(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (is_finite<f32_type>(bits)) return static_cast<double>(x);
  return std::bit_cast<double>(uint64_t{bits & 0x80000000} << 32 | 0x7ff0000000000000 |
                               uint64_t{bits & 0x7fffff} << 29);
}
// A value of one type in another, rounded once.
template <class From, class To>
DR_HD typename To::bits converted(typename From::bits b) {
  if constexpr (std::is_same_v<From, To>)
    return b;
  else if constexpr (std::is_same_v<To, f32_type>)
    return std::bit_cast<uint32_t>(From::to_f32(b));
  else
    return To::from_f64(exact_f64(From::to_f32(b)));
}

// A finite number beyond the largest of the type becomes that one, with its sign.
template <class T>
DR_HD inline double saturate(double v) {
  return v > T::largest ? T::largest : v < -T::largest ? -T::largest : v;
}

// Calls f with the type's description. dtype has been checked.
template <class F>
DR_HD decltype(auto) with_value_type(uint32_t dtype, F&& f) {
  if (dtype == DR_F32) return f(f32_type{});
  if (dtype == DR_F16) return f(f16_type{});
  return f(bf16_type{});
}

DR_HD constexpr unsigned value_size(uint32_t dtype) { return dtype == DR_F32 ? 4 : 2; }
constexpr bool is_value_type(uint32_t dtype) { return dtype >= DR_F32 && dtype <= DR_BF16; }
constexpr bool is_index_type(uint32_t dtype) { return dtype >= DR_U32 && dtype <= DR_I64; }

}  // namespace dr
