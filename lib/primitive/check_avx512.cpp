// The frame's check, sixteen words at a time.
#include "primitive/check.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

// Prefetches a chunk ahead, also across page boundaries, which the CPU's prefetchers do not cross. (Otherwise loads
// across cache lines cost more in every more distant level of memory.)
__m512i check_load_avx512(const uint8_t* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from) + 4 * check_chunk_words, _MM_HINT_T0);
  return _mm512_loadu_si512(from);
}

}  // namespace

// Whole chunks: Σ w · T of even and of odd words, to which Σ T is added once. Scalar code adds a short chunk.
uint64_t check_terms_avx512(const uint8_t* from, size_t words, uint64_t first) {
  uint64_t total = 0;
  for (; words >= check_chunk_words; words -= check_chunk_words, from += 4 * check_chunk_words, ++first) {
    __m512i even[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, odd[2] = {even[0], even[0]};
    for (size_t i = 0; i < check_chunk_words; i += 32)
      for (size_t k = 0; k < 2; ++k) {
        const __m512i w = check_load_avx512(from + 4 * (i + 16 * k)),
                      t = _mm512_loadu_si512(check_table.data() + i + 16 * k);
        even[k] = _mm512_add_epi64(even[k], _mm512_mul_epu32(w, t));
        odd[k] = _mm512_add_epi64(odd[k], _mm512_mul_epu32(_mm512_srli_epi64(w, 32), _mm512_srli_epi64(t, 32)));
      }
    const __m512i sum = _mm512_add_epi64(_mm512_add_epi64(even[0], even[1]), _mm512_add_epi64(odd[0], odd[1]));
    alignas(64) uint64_t lanes[8];  // (gcc's own sum of them is of signed numbers, which may not overflow)
    _mm512_store_si512(lanes, sum);
    uint64_t terms = check_table_sum;
    for (const uint64_t lane : lanes) terms += lane;
    total += mix64(terms + first * golden);
  }
  return total + check_terms_with(from, words, first);
}

}  // namespace dr
DR_ISA_END
#endif
