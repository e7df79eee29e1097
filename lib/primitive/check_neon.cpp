// The frame's check, sixteen words at a time.
#include "primitive/check.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
namespace dr {

// Whole chunks: Σ w · T in sums that do not wait for each other, to which Σ T is added once. Scalar code adds a short
// chunk.
uint64_t check_terms_neon(const uint8_t* from, size_t words, uint64_t first) {
  uint64_t total = 0;
  for (; words >= check_chunk_words; words -= check_chunk_words, from += 4 * check_chunk_words, ++first) {
    uint64x2_t low[4] = {}, high[4] = {};
    for (size_t i = 0; i < check_chunk_words; i += 16)
      for (size_t k = 0; k < 4; ++k) {
        const uint32x4_t w = load_4(from + 4 * (i + 4 * k)), t = vld1q_u32(check_table.data() + i + 4 * k);
        low[k] = vmlal_u32(low[k], vget_low_u32(w), vget_low_u32(t));
        high[k] = vmlal_high_u32(high[k], w, t);
      }
    uint64x2_t sum = vdupq_n_u64(0);
    for (size_t k = 0; k < 4; ++k) sum = vaddq_u64(sum, vaddq_u64(low[k], high[k]));
    total += mix64(vaddvq_u64(sum) + check_table_sum + first * golden);
  }
  return total + check_terms_with(from, words, first);
}

}  // namespace dr
#endif
