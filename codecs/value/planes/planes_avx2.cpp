// Words to planes of bytes and back, 32 at a time; those of 32 and 64 bits by what the compiler makes of the loops.
#include "codecs/value/planes/planes_words_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i load32(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store32(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
__m256i turned(__m256i x, int by) {  // of 16 bits
  return _mm256_or_si256(_mm256_slli_epi16(x, by), _mm256_srli_epi16(x, 16 - by));
}

void store32(void* to, __m256i x, bool past) {
  if (past)
    _mm256_stream_si256(static_cast<__m256i*>(to), x);
  else
    store32(to, x);
}

template <class Word>
uint64_t split16(const uint16_t* words, uint64_t n, const planes_target<Word>& to) {
  const __m256i low = _mm256_set1_epi16(0xff);
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Memory that is read in order, a page ahead: processors fetch nothing across its end by themselves.
    _mm_prefetch(reinterpret_cast<const char*>(words + i) + 4096, _MM_HINT_T0);
    __m256i a = load32(words + i), b = load32(words + i + 16);
    if (Word::number) {
      a = turned(a, 1);
      b = turned(b, 1);
    }
    const __m256i lows = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
    const __m256i highs = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    store32(to.planes[0] + i, _mm256_permute4x64_epi64(lows, 0xd8), to.past & 1);
    store32(to.planes[1] + i, _mm256_permute4x64_epi64(highs, 0xd8), to.past & 2);
  }
  return i;
}
template <class Word>
uint64_t join16(const uint8_t* const* planes, uint64_t n, uint16_t* words, bool past) {
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i lows = _mm256_permute4x64_epi64(load32(planes[0] + i), 0xd8),
                  highs = _mm256_permute4x64_epi64(load32(planes[1] + i), 0xd8);
    __m256i a = _mm256_unpacklo_epi8(lows, highs), b = _mm256_unpackhi_epi8(lows, highs);
    if (Word::number) {
      a = turned(a, 15);
      b = turned(b, 15);
    }
    store32(words + i, a, past);
    store32(words + i + 16, b, past);
  }
  return i;
}

}  // namespace

template <class Word>
void planes_split_avx2(const typename Word::bits* words, uint64_t n, planes_target<Word> to) {
  planes_split_by<Word>(words, n, to, [](const auto* from, uint64_t left, const planes_target<Word>& at) -> uint64_t {
    if constexpr (Word::size == 2) return split16<Word>(from, left, at);
    return 0;
  });
}
template <class Word>
void planes_join_avx2(const uint8_t* const* planes, uint64_t n, typename Word::bits* words, bool past) {
  planes_join_by<Word>(planes, n, words, past, [=](const uint8_t* const* at, uint64_t left, auto* to) -> uint64_t {
    if constexpr (Word::size == 2) return join16<Word>(at, left, to, past);
    return 0;
  });
}

#define DR_PLANES_AVX2(Bits, number)                                                                    \
  template void planes_split_avx2<planes_word<Bits, number>>(const Bits*, uint64_t,                     \
                                                             planes_target<planes_word<Bits, number>>); \
  template void planes_join_avx2<planes_word<Bits, number>>(const uint8_t* const*, uint64_t, Bits*, bool);
DR_PLANES_AVX2(uint8_t, false)
DR_PLANES_AVX2(uint16_t, false)
DR_PLANES_AVX2(uint32_t, false)
DR_PLANES_AVX2(uint16_t, true)
DR_PLANES_AVX2(uint32_t, true)
DR_PLANES_AVX2(uint64_t, true)

planes_range planes_range_avx2(const uint8_t* bytes, uint64_t n) { return planes_range_with(bytes, n); }
void planes_lower_avx2(uint8_t* bytes, uint64_t n, uint8_t by) { planes_lower_with(bytes, n, by); }

}  // namespace dr
DR_ISA_END
#endif
