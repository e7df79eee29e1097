// Signs, one bit each, and sums of magnitudes on both sides of zero (layout: SPEC.md).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// A one per value below zero; zeros of both signs are not. Writes ceil(n / 8) bytes, low bit first.
template <class T>
void sign_pack_scalar(const typename T::bits* values, uint64_t n, uint8_t* out) {
  for (uint64_t i = 0; i < n; i += 8) {
    uint32_t byte = 0;
    for (uint64_t k = 0; k < 8 && i + k < n; ++k) byte |= static_cast<uint32_t>(values[i + k] > minus_zero<T>) << k;
    *out++ = static_cast<uint8_t>(byte);
  }
}

// The inverse: `below` for a one, else `other`.
template <class T>
void sign_unpack_scalar(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                        typename T::bits* out) {
  const typename T::bits numbers[] = {other, below};
  for (uint64_t i = 0; i < n; ++i) out[i] = numbers[bits[i / 8] >> i % 8 & 1];
}

// Σ |v| of the values below zero, and of the others. Both sums have a place per value.
struct sign_sums {
  double below, other;
};
inline double magnitude_below(double v) { return 0.5 * (std::fabs(v) - v); }  // exact, and without a branch
inline double magnitude_other(double v) { return 0.5 * (std::fabs(v) + v); }
template <class T>
sign_sums sign_sums_scalar(const typename T::bits* values, uint64_t n) {
  return {tree_sum(n, [&](uint64_t i) { return magnitude_below(double{T::to_f32(values[i])}); }),
          tree_sum(n, [&](uint64_t i) { return magnitude_other(double{T::to_f32(values[i])}); })};
}

template <class T>
void sign_pack_avx2(const typename T::bits* values, uint64_t n, uint8_t* out);
template <class T>
void sign_pack_avx512(const typename T::bits* values, uint64_t n, uint8_t* out);
template <class T>
void sign_unpack_avx2(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                      typename T::bits* out);
template <class T>
void sign_unpack_avx512(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                        typename T::bits* out);
template <class T>
sign_sums sign_sums_avx2(const typename T::bits* values, uint64_t n);
template <class T>
sign_sums sign_sums_avx512(const typename T::bits* values, uint64_t n);

template <class T>
void sign_pack_neon(const typename T::bits* values, uint64_t n, uint8_t* out);
template <class T>
void sign_unpack_neon(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                      typename T::bits* out);

template <class T>
inline constexpr cpu_table<decltype(&sign_pack_scalar<T>)> sign_pack{
    sign_pack_scalar<T>, on_x86(sign_pack_avx2<T>), on_x86(sign_pack_avx512<T>), on_arm(sign_pack_neon<T>)};
template <class T>
inline constexpr cpu_table<decltype(&sign_unpack_scalar<T>)> sign_unpack{
    sign_unpack_scalar<T>, on_x86(sign_unpack_avx2<T>), on_x86(sign_unpack_avx512<T>), on_arm(sign_unpack_neon<T>)};
template <class T>
inline constexpr cpu_table<decltype(&sign_sums_scalar<T>)> sign_sums_of{sign_sums_scalar<T>, on_x86(sign_sums_avx2<T>),
                                                                        on_x86(sign_sums_avx512<T>)};

}  // namespace dr
