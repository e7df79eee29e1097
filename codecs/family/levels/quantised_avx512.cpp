#include "codecs/family/levels/quantised.hpp"

#if DR_X86

namespace dr {

DR_AVX512_BEGIN

magnitude_range range_of_avx512(const uint32_t* values, size_t n) {
  const __m512i mask = _mm512_set1_epi32(f32_type::magnitude_mask);
  __m512i least[2] = {_mm512_set1_epi32(-1), _mm512_set1_epi32(-1)};
  __m512i largest[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  size_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int h = 0; h < 2; ++h) {
      const __m512i m = _mm512_and_si512(_mm512_loadu_si512(values + i + 16 * h), mask);
      least[h] = _mm512_min_epu32(least[h], m);
      largest[h] = _mm512_max_epu32(largest[h], m);
    }
  for (; i < n; i += 16) {
    const auto some = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
    const __m512i m = _mm512_and_si512(_mm512_maskz_loadu_epi32(some, values + i), mask);
    least[0] = _mm512_mask_min_epu32(least[0], some, least[0], m);
    largest[0] = _mm512_max_epu32(largest[0], m);
  }
  return {_mm512_reduce_min_epu32(_mm512_min_epu32(least[0], least[1])),
          _mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[1]))};
}

DR_ISA_END

}  // namespace dr

#endif
