// f32 to f16 and bf16 and back, eight or sixteen numbers at a time.
#include "codecs/value/half/half_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

void half_f32_to_f16_avx2(const uint8_t* in, uint64_t n, uint8_t* out) {
  const __m256 largest = _mm256_set1_ps(65504), least = _mm256_set1_ps(-65504);
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(reinterpret_cast<const float*>(in + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i),
                     _mm256_cvtps_ph(_mm256_max_ps(_mm256_min_ps(v, largest), least), _MM_FROUND_TO_NEAREST_INT));
  }
  half_convert<f32_type, f16_type>(in + 4 * i, n - i, out + 2 * i);
}
// Nearest in integers: half a unit is added, less one if the result is even. A carry is the next
// exponent.
__m256i half_round_bf16_avx2(__m256i v) {
  const __m256i sign = _mm256_set1_epi32(0x8000),
                odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
  const __m256i m = _mm256_add_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)),
                                     _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i rounded = _mm256_min_epu32(_mm256_srli_epi32(m, 16), _mm256_set1_epi32(0x7f7f));
  return _mm256_or_si256(rounded, _mm256_and_si256(_mm256_srli_epi32(v, 16), sign));
}
void half_f32_to_bf16_avx2(const uint8_t* in, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i low = half_round_bf16_avx2(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 4 * i)));
    const __m256i high = half_round_bf16_avx2(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 4 * i + 32)));
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), both);
  }
  half_convert<f32_type, bf16_type>(in + 4 * i, n - i, out + 2 * i);
}

namespace {

__m256 half_to_f32_avx2(f16_type, __m128i h) { return _mm256_cvtph_ps(h); }
__m256 half_to_f32_avx2(bf16_type, __m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

}  // namespace

template <class From>
uint32_t half_widen_avx2(const uint8_t* in, uint64_t n, float* out) {
  const __m256i magnitudes = _mm256_set1_epi16(From::magnitude_mask);
  __m256i maxima = _mm256_setzero_si256();
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 2 * i));
    maxima = _mm256_max_epi16(maxima, _mm256_and_si256(h, magnitudes));
    _mm256_storeu_ps(out + i, half_to_f32_avx2(From{}, _mm256_castsi256_si128(h)));
    _mm256_storeu_ps(out + i + 8, half_to_f32_avx2(From{}, _mm256_extracti128_si256(h, 1)));
  }
  alignas(32) uint16_t lanes[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), maxima);
  uint32_t largest = half_widen_scalar<From>(in + 2 * i, n - i, out + i);
  for (const uint16_t m : lanes) largest = m > largest ? m : largest;
  return largest;
}

template uint32_t half_widen_avx2<f16_type>(const uint8_t*, uint64_t, float*);
template uint32_t half_widen_avx2<bf16_type>(const uint8_t*, uint64_t, float*);

}  // namespace dr
DR_ISA_END
#endif
