// Low bits joined to high halves, eight indices at a time.
#include "codecs/index/elias_fano/elias_fano_kernel.hpp"
#include "primitive/packing_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

bool join_low_avx2(const uint8_t* low, uint64_t low_size, unsigned l, uint64_t begin, uint64_t end, uint32_t* x) {
  if (l > fast_bits_max) return join_low_scalar(low, low_size, l, begin, end, x);
  const unpack_8 unpack(l);
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(l));
  const __m256i back = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6), sign = _mm256_set1_epi32(INT32_MIN);
  // An x below none: the first has no predecessor, and 0 must be above it.
  __m256i before = _mm256_set1_epi32(begin ? static_cast<int>(x[begin - 1]) : 0), falls = _mm256_setzero_si256();
  uint64_t i = begin;
  for (; i + 8 <= end && i * l / 8 + unpack_8::reach(l) <= low_size; i += 8) {
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i now = _mm256_or_si256(_mm256_sll_epi32(high, by), unpack(low + i * l / 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + i), now);
    const __m256i turned = _mm256_permutevar8x32_epi32(now, back);
    const __m256i previous = _mm256_blend_epi32(turned, before, 1);
    const __m256i rises = _mm256_cmpgt_epi32(_mm256_xor_si256(now, sign), _mm256_xor_si256(previous, sign));
    // (at i = 0 lane 0 is not judged)
    falls = _mm256_or_si256(falls, _mm256_andnot_si256(rises, i ? _mm256_set1_epi32(-1)
                                                                : _mm256_setr_epi32(0, -1, -1, -1, -1, -1, -1, -1)));
    before = turned;
  }
  return join_low_scalar(low, low_size, l, i, end, x) && _mm256_testz_si256(falls, falls);
}

}  // namespace dr
DR_ISA_END
#endif
