// Bit strings of split Golomb blocks, written by AVX2 and BMI2.
#pragma once

#include "codecs/family/golomb/golomb_lanes.hpp"
#include "primitive/unary_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

inline constexpr size_t golomb_block_max = size_t{1} << golomb_block_log2_max;

// Eight unary codes at once where they are short.
[[gnu::always_inline]] inline void put_unaries(bit_appender& out, __m128i q16) {
  const __m256i q = _mm256_cvtepu16_epi32(q16), low = _mm256_set1_epi64x(0xffffffff);
  const __m256i codes = _mm256_sllv_epi32(all32(1), q), lengths = _mm256_add_epi32(q, all32(1));
  const __m256i c2 = _mm256_or_si256(_mm256_and_si256(codes, low),
                                     _mm256_sllv_epi64(_mm256_srli_epi64(codes, 32), _mm256_and_si256(lengths, low)));
  const __m256i l2 = _mm256_add_epi64(_mm256_and_si256(lengths, low), _mm256_srli_epi64(lengths, 32));
  const __m256i c4 = _mm256_or_si256(c2, _mm256_sllv_epi64(_mm256_bsrli_epi128(c2, 8), l2));
  const __m256i l4 = _mm256_add_epi64(l2, _mm256_bsrli_epi128(l2, 8));
  const __m128i l4a = _mm256_castsi256_si128(l4), l8 = _mm_add_epi64(l4a, _mm256_extracti128_si256(l4, 1));
  const __m128i c8 = _mm_or_si128(_mm256_castsi256_si128(c4), _mm_sllv_epi64(_mm256_extracti128_si256(c4, 1), l4a));
  const auto length = static_cast<uint64_t>(_mm_cvtsi128_si64(l8));
  if (length > 39) {  // at or below it no quotient passes 31, since the other seven have at least one bit
    alignas(16) uint16_t quotients[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(quotients), q16);
    out = put_long_unaries(out, quotients, 8);
    return;
  }
  out.put(static_cast<uint64_t>(_mm_cvtsi128_si64(c8)), static_cast<unsigned>(length));
}

// The three strings of a body, in whole words, then copied: the payload has no room past it.
struct golomb_strings {
  alignas(32) uint8_t low[2 * golomb_block_max + 64], unary[golomb_flag + 64], extra[golomb_block_max / 8 + 64];
  uint8_t* low_end = low;
  bit_appender unaries{unary}, extras{extra};

  uint8_t* copy(uint8_t* out) {
    const auto add = [&](const uint8_t* from, const uint8_t* to) {
      std::memcpy(out, from, static_cast<size_t>(to - from));
      out += to - from;
    };
    add(low, low_end);
    add(unary, unaries.finish());
    add(extra, extras.finish());
    return out;
  }
};

// Lanes of 8 numbers of k <= 14 bits to 8k bits each.
struct golomb_packer {
  unsigned k;
  __m256i weights, even32, pair_low, pair_high;
  __m128i by4, by8;

  explicit golomb_packer(unsigned bits)
      : k(bits),
        weights(all32(uint64_t{1} << (16 + k) | 1)),
        even32(_mm256_set1_epi64x(32 - 2 * int{static_cast<int>(k)})),
        pair_low(_mm256_set_epi64x(64, 4 * k, 64, 4 * k)),
        pair_high(_mm256_set_epi64x(64 - 4 * k, 64, 64 - 4 * k, 64)),
        by4(_mm_cvtsi32_si128(static_cast<int>(32 - 2 * k))),
        by8(_mm_cvtsi32_si128(static_cast<int>(4 * k))) {}
  [[gnu::always_inline]] __m256i fours(__m256i v) const {
    return _mm256_srl_epi64(_mm256_sllv_epi32(_mm256_madd_epi16(v, weights), even32), by4);
  }
  // a: numbers 0 to 7 and 16 to 23 of 32, b: the others. Writes 4k bytes and up to 15 after them.
  [[gnu::always_inline]] void put(__m256i a, __m256i b, uint8_t* out) const {
    a = fours(a), b = fours(b);
    if (k <= 8) {
      const auto eights = [&](__m256i v) {
        return _mm256_or_si256(v, _mm256_sll_epi64(_mm256_bsrli_epi128(v, 8), by8));
      };
      a = eights(a), b = eights(b);
      const auto put8 = [&](__m128i v, size_t at) { _mm_storel_epi64(reinterpret_cast<__m128i*>(out + at), v); };
      put8(_mm256_castsi256_si128(a), 0);
      put8(_mm256_castsi256_si128(b), k);
      put8(_mm256_extracti128_si256(a, 1), 2 * k);
      put8(_mm256_extracti128_si256(b, 1), 3 * k);
      return;
    }
    const auto eights = [&](__m256i v) {
      const __m256i upper = _mm256_unpackhi_epi64(v, v);
      return _mm256_or_si256(_mm256_blend_epi32(_mm256_setzero_si256(), v, 0x33),
                             _mm256_or_si256(_mm256_sllv_epi64(upper, pair_low), _mm256_srlv_epi64(upper, pair_high)));
    };
    a = eights(a), b = eights(b);
    const auto put16 = [&](__m128i v, size_t at) { _mm_storeu_si128(reinterpret_cast<__m128i*>(out + at), v); };
    put16(_mm256_castsi256_si128(a), 0);
    put16(_mm256_castsi256_si128(b), k);
    put16(_mm256_extracti128_si256(a, 1), 2 * k);
    put16(_mm256_extracti128_si256(b, 1), 3 * k);
  }
};

}  // namespace dr
DR_ISA_END
#endif
