#include "patch/word_diff.hpp"
#include "primitive/set_bits_vectors.hpp"
#include "primitive/word.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i vector(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

// One bit for every one of 64 words: whether it differs.
template <class Bits>
uint64_t differing(const Bits* a, const Bits* b) {
  uint64_t same = 0;
  if constexpr (sizeof(Bits) == 8)
    for (unsigned k = 0; k < 64; k += 4)
      same |= uint64_t{static_cast<uint32_t>(
                  _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(vector(a + k), vector(b + k)))))}
              << k;
  else if constexpr (sizeof(Bits) == 4)
    for (unsigned k = 0; k < 64; k += 8)
      same |= uint64_t{static_cast<uint32_t>(
                  _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(vector(a + k), vector(b + k)))))}
              << k;
  else if constexpr (sizeof(Bits) == 2)
    for (unsigned k = 0; k < 64; k += 32) {
      const __m256i x = _mm256_cmpeq_epi16(vector(a + k), vector(b + k)),
                    y = _mm256_cmpeq_epi16(vector(a + k + 16), vector(b + k + 16));
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(x, y), 0xd8);
      same |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(packed))} << k;
    }
  else
    for (unsigned k = 0; k < 64; k += 32)
      same |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(vector(a + k), vector(b + k))))}
              << k;
  return ~same;
}

template <class Bits>
uint64_t diff(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
              std::byte* values) {
  return diff_by_masks<set_bits_avx2, Bits>(d, first, n, at, positions, old, values,
                                            [](const Bits* a, const Bits* b) { return differing(a, b); });
}

}  // namespace

uint64_t diff_words_avx2(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                         std::byte* old, std::byte* values) {
  return with_word(d.size, [&](auto bits) { return diff<decltype(bits)>(d, first, n, at, positions, old, values); });
}

}  // namespace dr
DR_ISA_END
#endif
