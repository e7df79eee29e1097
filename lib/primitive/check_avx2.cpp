// The frame's check, eight words at a time.
#include "primitive/check.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i check_load_avx2(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
// Prefetches a chunk ahead, also across page boundaries, which the CPU's prefetchers do not cross.
void check_fetch_avx2(const uint8_t* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from) + 4 * check_chunk_words, _MM_HINT_T0);
}

}  // namespace

// Whole chunks: Σ w · T of even and of odd words, to which Σ T is added once. Scalar code adds a short chunk.
uint64_t check_terms_avx2(const uint8_t* from, size_t words, uint64_t first) {
  uint64_t total = 0;
  for (; words >= check_chunk_words; words -= check_chunk_words, from += 4 * check_chunk_words, ++first) {
    __m256i even[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, odd[2] = {even[0], even[0]};
    for (size_t i = 0; i < check_chunk_words; i += 16) {
      check_fetch_avx2(from + 4 * i);
      for (size_t k = 0; k < 2; ++k) {
        const __m256i w = check_load_avx2(from + 4 * (i + 8 * k)), t = check_load_avx2(check_table.data() + i + 8 * k);
        even[k] = _mm256_add_epi64(even[k], _mm256_mul_epu32(w, t));
        odd[k] = _mm256_add_epi64(odd[k], _mm256_mul_epu32(_mm256_srli_epi64(w, 32), _mm256_srli_epi64(t, 32)));
      }
    }
    const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(even[0], even[1]), _mm256_add_epi64(odd[0], odd[1]));
    alignas(32) uint64_t lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    total += mix64(lanes[0] + lanes[1] + lanes[2] + lanes[3] + check_table_sum + first * golden);
  }
  return total + check_terms_with(from, words, first);
}

}  // namespace dr
DR_ISA_END
#endif
