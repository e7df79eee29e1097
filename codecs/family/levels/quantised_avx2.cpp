// The range of magnitudes, sixteen values at a time.
#include "codecs/family/levels/quantised.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

magnitude_range range_of_avx2(const uint32_t* values, size_t n) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i least[2] = {_mm256_set1_epi32(-1), _mm256_set1_epi32(-1)};
  __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int h = 0; h < 2; ++h) {
      const __m256i m =
          _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i + 8 * h)), mask);
      least[h] = _mm256_min_epu32(least[h], m);
      largest[h] = _mm256_max_epu32(largest[h], m);
    }
  magnitude_range range = range_of_scalar(values + i, n - i);
  alignas(32) uint32_t lanes[2][8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[0]), _mm256_min_epu32(least[0], least[1]));
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[1]), _mm256_max_epu32(largest[0], largest[1]));
  for (int j = 0; j < 8; ++j) {
    range.least = lanes[0][j] < range.least ? lanes[0][j] : range.least;
    range.largest = lanes[1][j] > range.largest ? lanes[1][j] : range.largest;
  }
  return range;
}

}  // namespace dr
DR_ISA_END
#endif
