// Sixteen gaps at a time.
#include "codecs/family/gaps/gaps_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

uint64_t ungap_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                      uint32_t& all) {
  size_t i = 0;
  if (bits <= narrow_gap_bits) {
    const unpack_16 unpack(bits);
    index_steps_16 step(next);
    __m512i any = _mm512_setzero_si512();
    for (; i + 16 <= n; i += 16, in += 2 * bits) {
      const __m512i gaps = unpack(in);
      any = _mm512_or_si512(any, gaps);
      _mm512_storeu_si512(x + i, step(gaps));
    }
    all |= static_cast<uint32_t>(_mm512_reduce_or_epi32(any));
    next = step.behind(next);
  }
  return ungap_scalar(in, end, n - i, bits, next, x + i, all);
}

}  // namespace dr
DR_ISA_END
#endif
