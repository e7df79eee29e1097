// Ones, 64 bits at a time; listed by compressing positions.
#include "codecs/family/ones/ones.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

inline uint64_t gather(uint8_t* marks) {
  const uint64_t word = _mm512_movepi8_mask(_mm512_load_si512(marks));
  _mm512_store_si512(marks, _mm512_setzero_si512());
  return word;
}

}  // namespace

template <bool ranked>
void set_ones_avx512(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  set_ones_with<ranked, uint64_t, gather>(x, n, shift, out, size);
}

uint64_t count_ones_avx512(const uint8_t* in, uint64_t size) {
  __m512i a = _mm512_setzero_si512(), b = a;
  uint64_t at = 0;
  for (; at + 128 <= size; at += 128) {
    a = _mm512_add_epi64(a, _mm512_popcnt_epi64(_mm512_loadu_si512(in + at)));
    b = _mm512_add_epi64(b, _mm512_popcnt_epi64(_mm512_loadu_si512(in + at + 64)));
  }
  for (; at < size; at += 64) {
    const __mmask64 rest = size - at >= 64 ? ~__mmask64{0} : (__mmask64{1} << (size - at)) - 1;
    a = _mm512_add_epi64(a, _mm512_popcnt_epi64(_mm512_maskz_loadu_epi8(rest, in + at)));
  }
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(a, b)));
}

template <bool ranked>
uint64_t list_ones_avx512(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  const __m512i bytes =
      _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                       0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i sixteen = _mm512_set1_epi32(16);
  uint64_t at = begin;
  for (; at + 8 <= end && i + 64 <= n; at += 8) {
    uint64_t word;
    std::memcpy(&word, in + at, 8);
    if (!word) continue;
    const auto ones = static_cast<unsigned>(_mm_popcnt_u64(word));
    const __m512i found = _mm512_maskz_compress_epi8(word, bytes);
    __m512i first = _mm512_set1_epi32(static_cast<int>(8 * at - (ranked ? i : 0)));
    if (ranked) first = _mm512_sub_epi32(first, iota);
    uint32_t* const to = out + i;
    i += ones;
    _mm512_storeu_si512(to, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(found))));
    if (ones <= 16) continue;
    // How many quarters are used no branch would guess: three at once.
    if (ranked) first = _mm512_sub_epi32(first, sixteen);
    _mm512_storeu_si512(to + 16, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(found, 1))));
    if (ranked) first = _mm512_sub_epi32(first, sixteen);
    _mm512_storeu_si512(to + 32, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(found, 2))));
    if (ones <= 48) continue;
    if (ranked) first = _mm512_sub_epi32(first, sixteen);
    _mm512_storeu_si512(to + 48, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(found, 3))));
  }
  return list_ones_scalar<ranked>(in, at, end, i, n, out);
}

template void set_ones_avx512<false>(const uint32_t*, uint64_t, unsigned, uint8_t*, uint64_t);
template void set_ones_avx512<true>(const uint32_t*, uint64_t, unsigned, uint8_t*, uint64_t);
template uint64_t list_ones_avx512<false>(const uint8_t*, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t*);
template uint64_t list_ones_avx512<true>(const uint8_t*, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t*);

}  // namespace dr
DR_ISA_END
#endif
