// Low bits joined to high halves, sixteen indices at a time.
#include "codecs/index/elias_fano/elias_fano_kernel.hpp"
#include "primitive/packing_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

bool join_low_avx512(const uint8_t* low, uint64_t low_size, unsigned l, uint64_t begin, uint64_t end, uint32_t* x) {
  if (l > fast_bits_max) return join_low_scalar(low, low_size, l, begin, end, x);
  const unpack_16 unpack(l);
  const __m128i by = _mm_cvtsi32_si128(static_cast<int>(l));
  __m512i before = _mm512_set1_epi32(begin ? static_cast<int>(x[begin - 1]) : 0);
  uint32_t falls = 0;
  uint64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    const __m512i now = _mm512_or_si512(_mm512_sll_epi32(_mm512_loadu_si512(x + i), by), unpack(low + i * l / 8));
    _mm512_storeu_si512(x + i, now);
    const __m512i previous = _mm512_alignr_epi32(now, before, 15);
    falls |= static_cast<uint32_t>(_mm512_cmple_epu32_mask(now, previous)) & (i ? 0xffff : 0xfffe);
    before = now;
  }
  return join_low_scalar(low, low_size, l, i, end, x) && !falls;
}

}  // namespace dr
DR_ISA_END
#endif
