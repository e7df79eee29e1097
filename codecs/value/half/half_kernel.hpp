// Finite f32, f16 and bf16 to a 16-bit type and back (layout: SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// n numbers of type From in type To: clamped to the largest, then rounded once, to nearest, ties to even. Both sides unaligned.
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
  int16_t most = 0;  // signed: what SSE2 has a maximum of
  for (uint64_t i = 0; i < n; ++i) {
    const auto m = static_cast<int16_t>(magnitude<T>(in[i]));
    most = m > most ? m : most;
  }
  if (most < static_cast<int16_t>(T::infinity)) return n;
  uint64_t at = 0;
  while (at < n && is_finite<T>(in[at])) ++at;
  return at;
}

#if DR_X86
DR_AVX2_BEGIN
inline void half_f32_to_f16_avx2(const uint8_t* in, uint64_t n, uint8_t* out) {
  const __m256 most = _mm256_set1_ps(65504), least = _mm256_set1_ps(-65504);
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(reinterpret_cast<const float*>(in + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                     _mm256_cvtps_ph(_mm256_max_ps(_mm256_min_ps(v, most), least), _MM_FROUND_TO_NEAREST_INT));
  }
  half_convert<f32_type, f16_type>(in + 4 * i, n - i, out + 2 * i);
}
inline void half_f16_to_f32_avx2(const uint8_t* in, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(reinterpret_cast<float*>(out + 4 * i),
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i))));
  half_convert<f16_type, f32_type>(in + 2 * i, n - i, out + 4 * i);
}
// Nearest in integers: half of what is cut off is added, less one unless what stays is odd. A carry is the next exponent.
inline __m256i half_round_bf16_avx2(__m256i v) {
  const __m256i sign = _mm256_set1_epi32(0x8000),
                odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
  const __m256i m = _mm256_add_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)),
                                     _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i rounded = _mm256_min_epu32(_mm256_srli_epi32(m, 16), _mm256_set1_epi32(0x7f7f));
  return _mm256_or_si256(rounded, _mm256_and_si256(_mm256_srli_epi32(v, 16), sign));
}
inline void half_f32_to_bf16_avx2(const uint8_t* in, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i low = half_round_bf16_avx2(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 4 * i)));
    const __m256i high = half_round_bf16_avx2(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 4 * i + 32)));
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), both);
  }
  half_convert<f32_type, bf16_type>(in + 4 * i, n - i, out + 2 * i);
}
inline void half_bf16_to_f32_avx2(const uint8_t* in, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * i), _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  half_convert<bf16_type, f32_type>(in + 2 * i, n - i, out + 4 * i);
}
DR_ISA_END
#endif

using half_function = void (*)(const uint8_t* in, uint64_t n, uint8_t* out);

// At each level. With AVX-512 it is no faster: AVX2 is at the speed of a copy (bench/kernels).
template <class From, class To>
constexpr cpu_table<half_function> half_table() {
  return {half_convert<From, To>};
}
#if DR_X86
template <>
constexpr cpu_table<half_function> half_table<f32_type, f16_type>() {
  return {half_convert<f32_type, f16_type>, half_f32_to_f16_avx2};
}
template <>
constexpr cpu_table<half_function> half_table<f16_type, f32_type>() {
  return {half_convert<f16_type, f32_type>, half_f16_to_f32_avx2};
}
template <>
constexpr cpu_table<half_function> half_table<f32_type, bf16_type>() {
  return {half_convert<f32_type, bf16_type>, half_f32_to_bf16_avx2};
}
template <>
constexpr cpu_table<half_function> half_table<bf16_type, f32_type>() {
  return {half_convert<bf16_type, f32_type>, half_bf16_to_f32_avx2};
}
#endif

}  // namespace dr
