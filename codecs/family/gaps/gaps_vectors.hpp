// Vectors of gaps to vectors of indices, for the twins of gaps.hpp and of the codecs that patch gaps.
#pragma once

#include "codecs/family/gaps/gaps.hpp"
#include "primitive/packing_vectors.hpp"

#if DR_X86
namespace dr {

DR_AVX2_BEGIN
inline uint32_t or_of_lanes(__m256i v) {
  __m128i half = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_or_si128(half, _mm_srli_si128(half, 8));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half) | _mm_extract_epi32(half, 1));
}

// The next eight indices from their gaps, while a block's span is below 2^32.
struct index_steps_8 {
  __m256i before;  // the index before, in all lanes

  explicit index_steps_8(uint64_t next) : before(_mm256_set1_epi32(static_cast<int>(next - 1))) {}
  __m256i operator()(__m256i gaps) {
    const __m256i last_of_low = _mm256_setr_epi32(3, 3, 3, 3, 3, 3, 3, 3), last = _mm256_set1_epi32(7);
    const __m256i high_half = _mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1);
    __m256i sum = _mm256_sub_epi32(gaps, _mm256_set1_epi32(-1));
    sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 4));
    sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 8));
    sum = _mm256_add_epi32(sum, _mm256_and_si256(_mm256_permutevar8x32_epi32(sum, last_of_low), high_half));
    const __m256i now = _mm256_add_epi32(sum, before);
    before = _mm256_add_epi32(before, _mm256_permutevar8x32_epi32(sum, last));
    return now;
  }
  // The index after the last, from the one after which the steps started.
  uint64_t behind(uint64_t next) const {
    const auto reached = static_cast<uint32_t>(_mm256_cvtsi256_si32(before));
    return next + static_cast<uint32_t>(reached - static_cast<uint32_t>(next - 1));
  }
};
DR_ISA_END

DR_AVX512_BEGIN
// The next sixteen.
struct index_steps_16 {
  __m512i before;

  explicit index_steps_16(uint64_t next) : before(_mm512_set1_epi32(static_cast<int>(next - 1))) {}
  __m512i operator()(__m512i gaps) {
    const __m512i none = _mm512_setzero_si512(), last = _mm512_set1_epi32(15);
    __m512i sum = _mm512_sub_epi32(gaps, _mm512_set1_epi32(-1));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 15));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 14));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 12));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 8));
    const __m512i now = _mm512_add_epi32(sum, before);
    before = _mm512_add_epi32(before, _mm512_permutexvar_epi32(last, sum));
    return now;
  }
  uint64_t behind(uint64_t next) const {
    const auto reached = static_cast<uint32_t>(_mm512_cvtsi512_si32(before));
    return next + static_cast<uint32_t>(reached - static_cast<uint32_t>(next - 1));
  }
};
DR_ISA_END

}  // namespace dr
#endif
