#include "patch/word_diff.hpp"
#include "primitive/word.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

// Positions of the bits of a mask. (A compression to memory is slow on some processors: whole vectors are stored, and what
// is behind is overwritten. There is room, for no more was found than words were read.)
void put_positions(uint64_t mask, unsigned bits, uint32_t first, uint32_t* to) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (bits == 8) {
    const __m256i at = _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm256_set1_epi32(static_cast<int>(first)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(static_cast<__mmask8>(mask), at));
    return;
  }
  for (unsigned k = 0; k < bits; k += 16, mask >>= 16) {
    const auto part = static_cast<__mmask16>(mask);
    const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first + k)));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(part, at));
    to += _mm_popcnt_u32(part);
  }
}

template <class Bits>
__m512i packed(uint64_t mask, __m512i words) {
  if constexpr (sizeof(Bits) == 8) return _mm512_maskz_compress_epi64(static_cast<__mmask8>(mask), words);
  if constexpr (sizeof(Bits) == 4) return _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), words);
  if constexpr (sizeof(Bits) == 2) return _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask), words);
  return _mm512_maskz_compress_epi8(mask, words);
}

template <class Bits>
uint64_t diff(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
              std::byte* values) {
  const auto *const a = reinterpret_cast<const Bits*>(d.base) + first, *const b =
                                                                           reinterpret_cast<const Bits*>(d.now) + first;
  auto *const x = reinterpret_cast<Bits*>(old), *const y = reinterpret_cast<Bits*>(values);
  constexpr unsigned step = 64 / sizeof(Bits);
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; i += step) {
    const __m512i p = _mm512_loadu_si512(a + i), q = _mm512_loadu_si512(b + i);
    uint64_t differ;
    if constexpr (sizeof(Bits) == 8)
      differ = _mm512_cmpneq_epu64_mask(p, q);
    else if constexpr (sizeof(Bits) == 4)
      differ = _mm512_cmpneq_epu32_mask(p, q);
    else if constexpr (sizeof(Bits) == 2)
      differ = _mm512_cmpneq_epu16_mask(p, q);
    else
      differ = _mm512_cmpneq_epu8_mask(p, q);
    // In a general register: where GCC 12 is short of them it keeps a mask of 8 bits in one byte of memory, and reads 8.
    asm("" : "+r"(differ));
    if (!differ) continue;
    if (positions) {
      put_positions(differ, step, at + static_cast<uint32_t>(i), positions + found);
      _mm512_storeu_si512(x + found, packed<Bits>(differ, p));
      _mm512_storeu_si512(y + found, packed<Bits>(differ, q));
    }
    found += static_cast<uint64_t>(_mm_popcnt_u64(differ));
  }
  return found;
}

}  // namespace

uint64_t diff_words_avx512(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values) {
  return with_word(d.size, [&](auto bits) { return diff<decltype(bits)>(d, first, n, at, positions, old, values); });
}

}  // namespace dr
DR_ISA_END
#endif
