// Values of 16 bits as f32 and back, for every instruction set. (For f32 both would be copies.)
#pragma once

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

template <class T>
void widen_values_scalar(const typename T::bits* values, uint64_t n, uint32_t* wide) {
  for (uint64_t i = 0; i < n; ++i) wide[i] = std::bit_cast<uint32_t>(T::to_f32(values[i]));
}
// Rounds as rounded_finite does. to: any alignment; it may be the beginning of `wide`.
template <class T>
void round_values_scalar(const float* wide, uint64_t n, void* to) {
  auto* const out = static_cast<uint8_t*>(to);
  for (uint64_t i = 0; i < n; ++i) store(out + i * sizeof(typename T::bits), rounded_finite<T>(wide[i]));
}

template <class T>
void widen_values_avx2(const typename T::bits* values, uint64_t n, uint32_t* wide);
template <class T>
void round_values_avx2(const float* wide, uint64_t n, void* to);
template <class T>
void widen_values_neon(const typename T::bits* values, uint64_t n, uint32_t* wide);
template <class T>
void round_values_neon(const float* wide, uint64_t n, void* to);

template <class T>
inline constexpr cpu_table<decltype(&widen_values_scalar<T>)> widen_values{
    widen_values_scalar<T>, on_x86(widen_values_avx2<T>), nullptr, on_arm(widen_values_neon<T>)};
template <class T>
inline constexpr cpu_table<decltype(&round_values_scalar<T>)> round_values_at{
    round_values_scalar<T>, on_x86(round_values_avx2<T>), nullptr, on_arm(round_values_neon<T>)};

}  // namespace dr
