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
  DR_HD static bits from_f32(float v) { return std::bit_cast<bits>(v); }
};
struct f16_type {
  using bits = uint16_t;
  static constexpr bits magnitude_mask = 0x7fff, infinity = 0x7c00;
  static constexpr double largest = 65504;
  DR_HD static float to_f32(bits b) { return f16_to_f32(b); }
  DR_HD static bits from_f64(double v) { return f64_to_f16(v); }
  DR_HD static bits from_f32(float v) { return f32_to_f16(v); }
};
struct bf16_type {
  using bits = uint16_t;
  static constexpr bits magnitude_mask = 0x7fff, infinity = 0x7f80;
  static constexpr double largest = 0x1.fep127;
  DR_HD static float to_f32(bits b) { return bf16_to_f32(b); }
  DR_HD static bits from_f64(double v) { return f64_to_bf16(v); }
  DR_HD static bits from_f32(float v) { return f32_to_bf16(v); }
};

// f(type) of a dtype of values.
template <class F>
auto with_type(uint32_t dtype, F&& f) {
  if (dtype == DR_F16) return f(f16_type{});
  if (dtype == DR_BF16) return f(bf16_type{});
  return f(f32_type{});
}

// The name of a value type, for messages.
inline const char* dtype_name(uint32_t dtype) {
  constexpr const char* names[] = {"?", "f32", "f16", "bf16", "u32", "i32", "u64", "i64", "f64", "u8", "u16"};
  return dtype < sizeof names / sizeof *names ? names[dtype] : "?";
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

// The bits of -0: larger bits, as integers, are negative numbers or NaN.
template <class T>
inline constexpr typename T::bits minus_zero = T::magnitude_mask + uint32_t{1};

// CPUs and GPUs compute different NaN: x86 returns one with the sign and payload of an operand, or a negative one; a
// GPU returns 0x7fffffff. So this is the NaN of every result of arithmetic. The bits of NaN that are copied or
// converted do not change.
inline constexpr uint32_t computed_nan = 0x7fc00000;
DR_HD inline float computed(float x) {
#if defined(__CUDA_ARCH__)
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(magnitude<f32_type>(bits) > f32_type::infinity ? uint32_t{computed_nan} : bits);
#else
  return x != x ? std::bit_cast<float>(computed_nan) : x;
#endif
}
// Converts to f64; a NaN has the same sign and payload, which the CPU's instruction does not promise.
DR_HD inline double exact_f64(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (is_finite<f32_type>(bits)) return static_cast<double>(x);
  return std::bit_cast<double>(uint64_t{bits & 0x80000000} << 32 | 0x7ff0000000000000 |
                               uint64_t{bits & 0x7fffff} << 29);
}
// Converts a value to another type, rounded once.
template <class From, class To>
DR_HD typename To::bits converted(typename From::bits b) {
  if constexpr (std::is_same_v<From, To>)
    return b;
  else
    return To::from_f32(From::to_f32(b));
}

// A finite number above the largest of the type becomes that one, with its sign.
template <class T>
DR_HD inline double saturate(double v) {
  return v > T::largest ? T::largest : v < -T::largest ? -T::largest : v;
}

// Rounds a number to the type once; finite values stay finite.
template <class T>
DR_HD inline typename T::bits rounded_finite(float x) {
  if constexpr (std::is_same_v<T, f32_type>)
    return std::bit_cast<uint32_t>(x);
  else if constexpr (std::is_same_v<T, f16_type>)
    return f32_to_f16_finite(x);
  else
    return f32_to_bf16_finite(x);
}

// Calls f with the type's description. dtype has been checked.
template <class F>
DR_HD decltype(auto) with_value_type(uint32_t dtype, F&& f) {
  if (dtype == DR_F32) return f(f32_type{});
  if (dtype == DR_F16) return f(f16_type{});
  return f(bf16_type{});
}

// Bytes of a value, or of a word of a patch: a device has patches of values only.
DR_HD constexpr unsigned value_size(uint32_t dtype) {
#if defined(__CUDA_ARCH__)
  return dtype == DR_F32 ? 4 : 2;
#else
  if (dtype == DR_F32 || dtype == DR_U32) return 4;
  return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;
#endif
}
// All counts up to it are exact in the type: 256 + 1 is 256 in bf16.
constexpr uint64_t exact_counts(uint32_t dtype) {
  return uint64_t{1} << (dtype == DR_F32 ? 24 : dtype == DR_F16 ? 11 : 8);
}
DR_HD constexpr bool is_value_type(uint32_t dtype) { return dtype >= DR_F32 && dtype <= DR_BF16; }
// The types of patches: these, and words whose bits the library does not interpret as numbers.
DR_HD constexpr bool is_word_type(uint32_t dtype) {
  return is_value_type(dtype) || dtype == DR_U32 || (dtype >= DR_F64 && dtype <= DR_U16);
}
constexpr bool is_index_type(uint32_t dtype) { return dtype >= DR_U32 && dtype <= DR_I64; }
DR_HD constexpr unsigned index_type_size(uint32_t dtype) { return dtype == DR_U64 || dtype == DR_I64 ? 8 : 4; }

// Values of a type that is known only when a kernel runs.
template <class T>
DR_HD float number_at(const void* values, uint64_t i) {
  return T::to_f32(static_cast<const typename T::bits*>(values)[i]);
}
DR_HD inline float value_at(uint32_t dtype, const void* values, uint64_t i) {
  if (dtype == DR_F32) return number_at<f32_type>(values, i);
  if (dtype == DR_F16) return number_at<f16_type>(values, i);
  return number_at<bf16_type>(values, i);
}
DR_HD inline float value_of(uint32_t dtype, uint32_t bits) {
  if (dtype == DR_F32) return f32_type::to_f32(bits);
  if (dtype == DR_F16) return f16_type::to_f32(static_cast<uint16_t>(bits));
  return bf16_type::to_f32(static_cast<uint16_t>(bits));
}
DR_HD inline bool is_finite(uint32_t dtype, uint32_t bits) {
  if (dtype == DR_F32) return is_finite<f32_type>(bits);
  const auto half = static_cast<uint16_t>(bits);
  return dtype == DR_F16 ? is_finite<f16_type>(half) : is_finite<bf16_type>(half);
}
DR_HD inline uint32_t bits_of(uint32_t dtype, float v) {
  if (dtype == DR_F32) return f32_type::from_f32(v);
  return dtype == DR_F16 ? f16_type::from_f32(v) : bf16_type::from_f32(v);
}
DR_HD inline void store_bits(uint32_t dtype, void* to, uint64_t i, uint32_t bits) {
  if (dtype == DR_F32)
    static_cast<uint32_t*>(to)[i] = bits;
  else
    static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits);
}
DR_HD inline uint32_t load_bits(uint32_t dtype, const void* from, uint64_t i) {
  return dtype == DR_F32 ? static_cast<const uint32_t*>(from)[i] : static_cast<const uint16_t*>(from)[i];
}
// Stores an index in a framework's type.
DR_HD inline void store_index(uint32_t index_type, void* to, uint64_t i, uint64_t index) {
  if (index_type_size(index_type) == 4)
    static_cast<uint32_t*>(to)[i] = static_cast<uint32_t>(index);
  else
    static_cast<uint64_t*>(to)[i] = index;
}

}  // namespace dr
