// Eight gaps at a time.
#include "codecs/family/gaps/gaps_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

unsigned gaps_avx2(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps) {
  if (n == 0) return 0;
  gaps[0] = static_cast<uint32_t>(x[0] - next);
  __m256i all = _mm256_setzero_si256();
  uint32_t rest = gaps[0];
  size_t i = 1;
  for (; i + 8 <= n; i += 8) {
    const __m256i now = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)),
                  before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i - 1));
    // now - before - 1 = now + ~before
    const __m256i gap = _mm256_add_epi32(now, _mm256_xor_si256(before, _mm256_set1_epi32(-1)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(gaps + i), gap);
    all = _mm256_or_si256(all, gap);
  }
  for (; i < n; ++i) rest |= gaps[i] = x[i] - x[i - 1] - 1;
  return bit_width(rest | or_of_lanes(all));
}

uint64_t ungap_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                    uint32_t& all) {
  size_t i = 0;
  if (bits <= narrow_gap_bits) {
    const unpack_8 unpack(bits);
    index_steps_8 step(next);
    __m256i any = _mm256_setzero_si256();
    for (; i + 8 <= n && static_cast<size_t>(end - in) >= unpack_8::reach(bits); i += 8, in += bits) {
      const __m256i gaps = unpack(in);
      any = _mm256_or_si256(any, gaps);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + i), step(gaps));
    }
    all |= or_of_lanes(any);
    next = step.behind(next);
  }
  return ungap_scalar(in, end, n - i, bits, next, x + i, all);
}

}  // namespace dr
DR_ISA_END
#endif
