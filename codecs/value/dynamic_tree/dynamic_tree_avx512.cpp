// Numbers sixteen at a time, from a table in eight registers.
#include "codecs/value/dynamic_tree/dynamic_tree_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

void dynamic_tree_decode_avx512(const uint8_t* codes, uint64_t n, float scale, uint32_t* out) {
  const dynamic_tree_values<f32_type> table(scale);
  __m512i part[8];
  for (int k = 0; k < 8; ++k) part[k] = _mm512_loadu_si512(table.value + 16 * k);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000));
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    // Permutations look at five bits of a code; bits 5 and 6 choose among four.
    const __mmask16 by_32 = _mm512_test_epi32_mask(c, _mm512_set1_epi32(32)),
                    by_64 = _mm512_test_epi32_mask(c, _mm512_set1_epi32(64));
    const __m512i low = _mm512_mask_mov_epi32(_mm512_permutex2var_epi32(part[0], c, part[1]), by_32,
                                              _mm512_permutex2var_epi32(part[2], c, part[3]));
    const __m512i high = _mm512_mask_mov_epi32(_mm512_permutex2var_epi32(part[4], c, part[5]), by_32,
                                               _mm512_permutex2var_epi32(part[6], c, part[7]));
    const __m512i magnitude = _mm512_mask_mov_epi32(low, by_64, high);
    // magnitude | (c << 24 & sign)
    _mm512_storeu_si512(out + i, _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi32(c, 24), sign, 0xf8));
  }
  for (; i < n; ++i) out[i] = table.value[codes[i]];
}

}  // namespace dr
DR_ISA_END
#endif
