#include "patch/word_diff.hpp"
#include "primitive/set_bits_vectors.hpp"
#include "primitive/word.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

template <class Bits>
uint64_t differing(__m512i a, __m512i b) {
  if constexpr (sizeof(Bits) == 8) return _mm512_cmpneq_epu64_mask(a, b);
  if constexpr (sizeof(Bits) == 4) return _mm512_cmpneq_epu32_mask(a, b);
  if constexpr (sizeof(Bits) == 2) return _mm512_cmpneq_epu16_mask(a, b);
  return _mm512_cmpneq_epu8_mask(a, b);
}

template <class Bits>
__m512i packed(uint64_t mask, __m512i words) {
  if constexpr (sizeof(Bits) == 8) return _mm512_maskz_compress_epi64(static_cast<__mmask8>(mask), words);
  if constexpr (sizeof(Bits) == 4) return _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), words);
  if constexpr (sizeof(Bits) == 2) return _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask), words);
  return _mm512_maskz_compress_epi8(mask, words);
}

// No branch depends on whether a vector has a change, because it would be unpredictable.
template <class Bits>
uint64_t diff(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
              std::byte* values) {
  constexpr unsigned lanes = 64 / sizeof(Bits);
  constexpr uint64_t ahead = 2048 / sizeof(Bits);  // (The CPU's prefetchers stop at page boundaries.)
  const auto* a = reinterpret_cast<const Bits*>(d.base) + first;
  const auto* b = reinterpret_cast<const Bits*>(d.now) + first;
  auto *const x = reinterpret_cast<Bits*>(old), *const y = reinterpret_cast<Bits*>(values);
  alignas(64) uint16_t offsets[diff_block + 64];
  uint64_t found = 0;
  for (uint64_t end; n; n -= end, a += end, b += end, at += static_cast<uint32_t>(end)) {
    end = n < diff_block ? n : diff_block;
    uint64_t here = 0;
    for (uint64_t i = 0; i < end; i += lanes) {
      _mm_prefetch(reinterpret_cast<const char*>(a + i + ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + i + ahead), _MM_HINT_T0);
      uint64_t differ = differing<Bits>(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i));
      // Forces a general register: otherwise GCC 12 may spill a mask of 8 bits to one byte of memory, and reload 8
      // bytes.
      asm("" : "+r"(differ));
      const auto offset = static_cast<uint32_t>(i);
      here += lanes == 64 ? set_bits_avx512::put(differ, offset, offsets + here)
                          : set_bits_avx512::put_half(differ, offset, offsets + here);
    }
    if (positions) {
      for (uint64_t i = 0; i < here; i += 16)
        _mm512_storeu_si512(
            positions + found + i,
            _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(at)),
                             _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(offsets + i)))));
      if (here <= end / 16) {
        fetch_found(a, b, offsets, here, x + found, y + found);
      } else {
        for (uint64_t i = 0, k = found; i < end; i += lanes) {
          const __m512i p = _mm512_loadu_si512(a + i), q = _mm512_loadu_si512(b + i);
          uint64_t differ = differing<Bits>(p, q);
          asm("" : "+r"(differ));
          _mm512_storeu_si512(x + k, packed<Bits>(differ, p));
          _mm512_storeu_si512(y + k, packed<Bits>(differ, q));
          k += static_cast<uint64_t>(_mm_popcnt_u64(differ));
        }
      }
    }
    found += here;
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
