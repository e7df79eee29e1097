// Values of each type as vectors of f32.
#pragma once

#include <type_traits>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

template <class T>
inline __m256 load_8(const typename T::bits* v) {
  if constexpr (sizeof(*v) == 4)
    return _mm256_loadu_ps(reinterpret_cast<const float*>(v));
  else if constexpr (std::is_same_v<T, f16_type>)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v)));
  else
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v))), 16));
}

inline bool any_nan(__m256 v) { return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0; }

// Stores v, rounded once as by T::from_f32. Its NaN are computed_nan. out: any alignment.
template <class T>
inline void store_8(__m256 v, typename T::bits* out) {
  if constexpr (std::is_same_v<T, f32_type>) {
    _mm256_storeu_ps(reinterpret_cast<float*>(out), v);
    return;
  }
  __m128i halves;
  if constexpr (std::is_same_v<T, f16_type>) {
    halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  } else {  // half a unit is added, less one if the result is even; a carry is the next exponent
    const __m256i b = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i rounded = _mm256_srli_epi32(sum, 16);
    halves = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), halves);
}

// Halves of eight, in f64.
inline __m256d lower_4(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
inline __m256d upper_4(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }

}  // namespace dr
DR_ISA_END

DR_AVX512_BEGIN
namespace dr {

template <class T>
inline __m512 load_16(const typename T::bits* v, __mmask16 some = 0xffff) {
  if constexpr (sizeof(*v) == 4)
    return _mm512_maskz_loadu_ps(some, v);
  else if constexpr (std::is_same_v<T, f16_type>)
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, v));
  else
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, v)), 16));
}
// As store_8.
template <class T>
inline void store_16(__m512 v, typename T::bits* out) {
  if constexpr (std::is_same_v<T, f32_type>) {
    _mm512_storeu_ps(out, v);
    return;
  }
  __m256i halves;
  if constexpr (std::is_same_v<T, f16_type>) {
    halves = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  } else {
    const __m512i b = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), halves);
}
// Halves of sixteen, in f64.
inline __m512d lower_8(__m512 v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
inline __m512d upper_8(__m512 v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
// Eight values in f64.
template <class T>
inline __m512d load_8_f64(const typename T::bits* v) {
  return _mm512_cvtps_pd(load_8<T>(v));
}

}  // namespace dr
DR_ISA_END
#endif
