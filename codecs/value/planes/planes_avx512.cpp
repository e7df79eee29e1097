// Words to planes of bytes and back, 64 at a time.
#include "codecs/value/planes/planes_words_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

__m512i load64(const void* from) { return _mm512_loadu_si512(from); }

void store64(void* to, __m512i x, bool past) {
  if (past)
    _mm512_stream_si512(static_cast<__m512i*>(to), x);
  else
    _mm512_storeu_si512(to, x);
}
// Memory that is read in order, a page ahead: processors fetch nothing across its end by themselves.
void fetch(const void* at) { _mm_prefetch(static_cast<const char*>(at) + 4096, _MM_HINT_T0); }

// Of words of 16 bits: their low bytes, or their high ones.
template <class Word>
uint64_t split16(const uint16_t* words, uint64_t n, const planes_target<Word>& to) {
  const __m512i low = _mm512_set1_epi16(0xff), order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    fetch(words + i);
    fetch(words + i + 32);
    __m512i a = load64(words + i), b = load64(words + i + 32);
    if (Word::number) {
      a = _mm512_shldi_epi16(a, a, 1);
      b = _mm512_shldi_epi16(b, b, 1);
    }
    const __m512i lows = _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
    const __m512i highs = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    store64(to.planes[0] + i, _mm512_permutexvar_epi64(order, lows), to.past & 1);
    store64(to.planes[1] + i, _mm512_permutexvar_epi64(order, highs), to.past & 2);
  }
  return i;
}
template <class Word>
uint64_t join16(const uint8_t* const* planes, uint64_t n, uint16_t* words, bool past) {
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i lows = _mm512_permutexvar_epi64(order, load64(planes[0] + i)),
                  highs = _mm512_permutexvar_epi64(order, load64(planes[1] + i));
    __m512i a = _mm512_unpacklo_epi8(lows, highs), b = _mm512_unpackhi_epi8(lows, highs);
    if (Word::number) {
      a = _mm512_shrdi_epi16(a, a, 1);
      b = _mm512_shrdi_epi16(b, b, 1);
    }
    store64(words + i, a, past);
    store64(words + i + 32, b, past);
  }
  return i;
}
// Byte p of dword j is byte 16 p + j, and back.
__m512i by_plane(bool back) {
  alignas(64) uint8_t from[64];
  for (unsigned p = 0; p < 4; ++p)
    for (unsigned j = 0; j < 16; ++j) {
      const unsigned in_words = 4 * j + p, in_planes = 16 * p + j;
      from[back ? in_words : in_planes] = static_cast<uint8_t>(back ? in_planes : in_words);
    }
  return _mm512_load_si512(from);
}
template <class Word>
uint64_t split32(const uint32_t* words, uint64_t n, const planes_target<Word>& to) {
  const __m512i order = by_plane(false);
  const auto planes_of = [&](uint64_t at) __attribute__((always_inline)) {
    fetch(words + at);
    __m512i x = load64(words + at);
    if (Word::number) x = _mm512_rol_epi32(x, 1);
    return _mm512_permutexvar_epi8(order, x);
  };
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    // Four rows of 16 bytes of four planes, turned over.
    const __m512i a = planes_of(i), b = planes_of(i + 16), c = planes_of(i + 32), d = planes_of(i + 48);
    const __m512i ab01 = _mm512_shuffle_i32x4(a, b, 0x44), ab23 = _mm512_shuffle_i32x4(a, b, 0xee),
                  cd01 = _mm512_shuffle_i32x4(c, d, 0x44), cd23 = _mm512_shuffle_i32x4(c, d, 0xee);
    store64(to.planes[0] + i, _mm512_shuffle_i32x4(ab01, cd01, 0x88), to.past & 1);
    store64(to.planes[1] + i, _mm512_shuffle_i32x4(ab01, cd01, 0xdd), to.past & 2);
    store64(to.planes[2] + i, _mm512_shuffle_i32x4(ab23, cd23, 0x88), to.past & 4);
    store64(to.planes[3] + i, _mm512_shuffle_i32x4(ab23, cd23, 0xdd), to.past & 8);
  }
  return i;
}
template <class Word>
uint64_t join32(const uint8_t* const* planes, uint64_t n, uint32_t* words, bool past) {
  const __m512i order = by_plane(true);
  const auto load16 = [](const uint8_t* from) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512i x = _mm512_castsi128_si512(load16(planes[0] + i));
    x = _mm512_inserti32x4(x, load16(planes[1] + i), 1);
    x = _mm512_inserti32x4(x, load16(planes[2] + i), 2);
    x = _mm512_inserti32x4(x, load16(planes[3] + i), 3);
    x = _mm512_permutexvar_epi8(order, x);
    if (Word::number) x = _mm512_ror_epi32(x, 1);
    store64(words + i, x, past);
  }
  return i;
}

}  // namespace

template <class Word>
void planes_split_avx512(const typename Word::bits* words, uint64_t n, planes_target<Word> to) {
  planes_split_by<Word>(words, n, to, [](const auto* from, uint64_t left, const planes_target<Word>& at) -> uint64_t {
    if constexpr (Word::size == 2) return split16<Word>(from, left, at);
    if constexpr (Word::size == 4) return split32<Word>(from, left, at);
    return 0;
  });
}
template <class Word>
void planes_join_avx512(const uint8_t* const* planes, uint64_t n, typename Word::bits* words, bool past) {
  planes_join_by<Word>(planes, n, words, past, [=](const uint8_t* const* at, uint64_t left, auto* to) -> uint64_t {
    if constexpr (Word::size == 2) return join16<Word>(at, left, to, past);
    if constexpr (Word::size == 4) return join32<Word>(at, left, to, past);
    return 0;
  });
}

#define DR_PLANES_AVX512(Bits, number)                                                                    \
  template void planes_split_avx512<planes_word<Bits, number>>(const Bits*, uint64_t,                     \
                                                               planes_target<planes_word<Bits, number>>); \
  template void planes_join_avx512<planes_word<Bits, number>>(const uint8_t* const*, uint64_t, Bits*, bool);
DR_PLANES_AVX512(uint8_t, false)
DR_PLANES_AVX512(uint16_t, false)
DR_PLANES_AVX512(uint32_t, false)
DR_PLANES_AVX512(uint16_t, true)
DR_PLANES_AVX512(uint32_t, true)
DR_PLANES_AVX512(uint64_t, true)

planes_range planes_range_avx512(const uint8_t* bytes, uint64_t n) {
  const __m512i one = _mm512_set1_epi8(1);
  __m512i least = _mm512_set1_epi8(-1), less = least, largest = _mm512_setzero_si512();
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i x = load64(bytes + i);
    least = _mm512_min_epu8(least, x);
    less = _mm512_min_epu8(less, _mm512_sub_epi8(x, one));
    largest = _mm512_max_epu8(largest, x);
  }
  alignas(64) uint8_t lanes[3][64];
  _mm512_store_si512(lanes[0], least);
  _mm512_store_si512(lanes[1], _mm512_adds_epu8(less, one));
  _mm512_store_si512(lanes[2], largest);
  planes_range r = planes_range_with(bytes + i, n - i);
  for (unsigned k = 0; k < 64; ++k) {
    r.least = lanes[0][k] < r.least ? lanes[0][k] : r.least;
    r.above_zero = lanes[1][k] < r.above_zero ? lanes[1][k] : r.above_zero;
    r.largest = lanes[2][k] > r.largest ? lanes[2][k] : r.largest;
  }
  return r;
}

void planes_lower_avx512(uint8_t* bytes, uint64_t n, uint8_t by) {
  const __m512i less = _mm512_set1_epi8(static_cast<char>(by));
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) _mm512_storeu_si512(bytes + i, _mm512_subs_epu8(load64(bytes + i), less));
  planes_lower_with(bytes + i, n - i, by);
}

}  // namespace dr
DR_ISA_END
#endif
