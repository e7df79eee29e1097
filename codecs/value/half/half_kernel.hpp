// Finite f32, f16 and bf16 to a 16-bit type and back (layout: SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// n numbers of type From in type To: clamped to the largest, then rounded once, to nearest, ties to even. Both sides
// unaligned.
template <class From, class To>
void half_convert(const uint8_t* in, uint64_t n, uint8_t* out) {
  using from = typename From::bits;
  using to = typename To::bits;
  for (uint64_t i = 0; i < n; ++i)
    store(out + i * sizeof(to), To::from_f64(saturate<To>(From::to_f32(load<from>(in + i * sizeof(from))))));
}

// The first of n numbers of a 16-bit type that is not finite; n if all are.
template <class T>
uint64_t half_not_finite(const uint16_t* in, uint64_t n) {
  int16_t most = 0;  // signed, because SSE2 has a maximum of these
  for (uint64_t i = 0; i < n; ++i) {
    const auto m = static_cast<int16_t>(magnitude<T>(in[i]));
    most = m > most ? m : most;
  }
  if (most < static_cast<int16_t>(T::infinity)) return n;
  uint64_t at = 0;
  while (at < n && is_finite<T>(in[at])) ++at;
  return at;
}

void half_f32_to_f16_avx2(const uint8_t* in, uint64_t n, uint8_t* out);
void half_f16_to_f32_avx2(const uint8_t* in, uint64_t n, uint8_t* out);
void half_f32_to_bf16_avx2(const uint8_t* in, uint64_t n, uint8_t* out);
void half_bf16_to_f32_avx2(const uint8_t* in, uint64_t n, uint8_t* out);

using half_function = void (*)(const uint8_t* in, uint64_t n, uint8_t* out);

// For each instruction set. With AVX-512 it is no faster: AVX2 is at the speed of a copy (bench/kernels).
template <class From, class To>
inline constexpr cpu_table<half_function> half_table{half_convert<From, To>};
template <>
inline constexpr cpu_table<half_function> half_table<f32_type, f16_type>{half_convert<f32_type, f16_type>,
                                                                         on_x86(half_f32_to_f16_avx2)};
template <>
inline constexpr cpu_table<half_function> half_table<f16_type, f32_type>{half_convert<f16_type, f32_type>,
                                                                         on_x86(half_f16_to_f32_avx2)};
template <>
inline constexpr cpu_table<half_function> half_table<f32_type, bf16_type>{half_convert<f32_type, bf16_type>,
                                                                          on_x86(half_f32_to_bf16_avx2)};
template <>
inline constexpr cpu_table<half_function> half_table<bf16_type, f32_type>{half_convert<bf16_type, f32_type>,
                                                                          on_x86(half_bf16_to_f32_avx2)};

}  // namespace dr
