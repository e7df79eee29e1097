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
  int16_t largest = 0;  // signed, because SSE2 has a maximum of these
  for (uint64_t i = 0; i < n; ++i) {
    const auto m = static_cast<int16_t>(magnitude<T>(in[i]));
    largest = m > largest ? m : largest;
  }
  if (largest < static_cast<int16_t>(T::infinity)) return n;
  uint64_t at = 0;
  while (at < n && is_finite<T>(in[at])) ++at;
  return at;
}

// n numbers of type From as f32. Returns their largest magnitude: who reads a number once has judged what was converted,
// even if the frame changes meanwhile.
template <class From>
uint32_t half_widen_scalar(const uint8_t* in, uint64_t n, float* out) {
  uint32_t largest = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const auto b = load<uint16_t>(in + 2 * i);
    largest = magnitude<From>(b) > largest ? magnitude<From>(b) : largest;
    out[i] = From::to_f32(b);
  }
  return largest;
}

void half_f32_to_f16_avx2(const uint8_t* in, uint64_t n, uint8_t* out);
void half_f32_to_bf16_avx2(const uint8_t* in, uint64_t n, uint8_t* out);
template <class From>
uint32_t half_widen_avx2(const uint8_t* in, uint64_t n, float* out);
void half_f32_to_f16_neon(const uint8_t* in, uint64_t n, uint8_t* out);
void half_f32_to_bf16_neon(const uint8_t* in, uint64_t n, uint8_t* out);
template <class From>
uint32_t half_widen_neon(const uint8_t* in, uint64_t n, float* out);

// From a type of 16 bits: the numbers as they are, or by way of f32.
template <class From, class To>
void half_across(const uint8_t* in, uint64_t n, uint8_t* out);

using half_function = void (*)(const uint8_t* in, uint64_t n, uint8_t* out);

// Per instruction set. AVX-512 is not faster: AVX2 runs at the speed of a copy (bench/kernels).
template <class From, class To>
inline constexpr cpu_table<half_function> half_table{half_convert<From, To>, on_x86(half_across<From, To>), nullptr,
                                                     on_arm(half_across<From, To>)};
template <>
inline constexpr cpu_table<half_function> half_table<f32_type, f16_type>{
    half_convert<f32_type, f16_type>, on_x86(half_f32_to_f16_avx2), nullptr, on_arm(half_f32_to_f16_neon)};
template <>
inline constexpr cpu_table<half_function> half_table<f32_type, bf16_type>{
    half_convert<f32_type, bf16_type>, on_x86(half_f32_to_bf16_avx2), nullptr, on_arm(half_f32_to_bf16_neon)};
template <class From>
inline constexpr cpu_table<decltype(&half_widen_scalar<From>)> half_widen{
    half_widen_scalar<From>, on_x86(half_widen_avx2<From>), nullptr, on_arm(half_widen_neon<From>)};

template <class From, class To>
void half_across(const uint8_t* in, uint64_t n, uint8_t* out) {
  if constexpr (std::is_same_v<From, To>) {
    if (n) std::memcpy(out, in, 2 * n);
    return;
  }
  constexpr uint64_t some = 1024;
  float wide[some];
  for (uint64_t first = 0; first < n; first += some) {
    const uint64_t length = n - first < some ? n - first : some;
    half_widen<From>.best()(in + 2 * first, length, wide);
    half_table<f32_type, To>.best()(reinterpret_cast<const uint8_t*>(wide), length, out + 2 * first);
  }
}

}  // namespace dr
