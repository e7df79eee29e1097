#include "patch/word_diff.hpp"
#include "primitive/neon_vectors.hpp"
#include "primitive/set_bits_vectors.hpp"
#include "primitive/word.hpp"

#if DR_NEON
namespace dr {
namespace {

// Sixteen bytes, one for every word: 255 if both words are the same.
template <class Bits>
uint8x16_t same_16_neon(const Bits* a, const Bits* b) {
  if constexpr (sizeof(Bits) == 1) {
    return vceqq_u8(vld1q_u8(a), vld1q_u8(b));
  } else if constexpr (sizeof(Bits) == 2) {
    return lower_halves(vceqq_u16(vld1q_u16(a), vld1q_u16(b)), vceqq_u16(vld1q_u16(a + 8), vld1q_u16(b + 8)));
  } else {
    uint32x4_t same[4];
    for (unsigned k = 0; k < 4; ++k) {
      const unsigned at = 4 * k;
      if constexpr (sizeof(Bits) == 4)
        same[k] = vceqq_u32(vld1q_u32(a + at), vld1q_u32(b + at));
      else
        same[k] = vuzp1q_u32(vreinterpretq_u32_u64(vceqq_u64(vld1q_u64(a + at), vld1q_u64(b + at))),
                             vreinterpretq_u32_u64(vceqq_u64(vld1q_u64(a + at + 2), vld1q_u64(b + at + 2))));
    }
    return lower_halves(lower_halves(same[0], same[1]), lower_halves(same[2], same[3]));
  }
}

// One bit for every one of 64 words: whether it differs.
template <class Bits>
uint64_t differing_neon(const Bits* a, const Bits* b) {
  return ~mask_of_64(same_16_neon(a, b), same_16_neon(a + 16, b + 16), same_16_neon(a + 32, b + 32),
                     same_16_neon(a + 48, b + 48));
}

template <class Bits>
uint64_t diff_neon(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
                   std::byte* values) {
  return diff_by_masks<set_bits_scalar, Bits>(d, first, n, at, positions, old, values,
                                              [](const Bits* a, const Bits* b) { return differing_neon(a, b); });
}

}  // namespace

uint64_t diff_words_neon(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                         std::byte* old, std::byte* values) {
  return with_word(d.size,
                   [&](auto bits) { return diff_neon<decltype(bits)>(d, first, n, at, positions, old, values); });
}

}  // namespace dr
#endif
