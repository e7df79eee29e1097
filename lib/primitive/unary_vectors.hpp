// Unary codes, q zeros and a one each, written by AVX2 and BMI2.
#pragma once

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

inline __m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store256(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline __m256i all16(uint64_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
inline __m256i all32(uint64_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

// 2^q of bytes below 8, 0 of those from 8 to 15.
inline __m256i powers() {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
}

[[gnu::noinline]] inline bit_appender put_long_unaries(bit_appender out, const uint16_t* q, size_t n) {
  for (size_t i = 0; i < n; ++i) out.put_unary(q[i]);
  return out;
}

// As below, of 16 quotients the first n: four by a pext, in 16 bits each.
[[gnu::noinline]] inline bit_appender put_sixteen(bit_appender out, __m256i q, size_t n) {
  constexpr uint16_t short_max = 13;  // of which four have 56 bits
  if (n < 16 || !_mm256_testz_si256(_mm256_subs_epu16(q, all16(short_max)), all16(0xffff))) {
    alignas(32) uint16_t each[16];
    store256(each, q);
    return put_long_unaries(out, each, n);
  }
  // The bytes of 2^q: below 2^8 the lower one has it, from there on the upper one, which takes q − 8.
  const __m256i bytes = _mm256_or_si256(q, _mm256_slli_epi16(_mm256_xor_si256(q, all16(8)), 8));
  const __m256i code = _mm256_shuffle_epi8(powers(), bytes);
  alignas(32) uint64_t codes[4], masks[4];
  store256(codes, code);
  store256(masks, _mm256_sub_epi16(_mm256_add_epi16(code, code), all16(1)));
  for (unsigned j = 0; j < 4; ++j)
    out.put(_pext_u64(codes[j], masks[j]), static_cast<unsigned>(_mm_popcnt_u64(masks[j])));
  return out;
}

// Unary codes of n quotients: q, or 8 to 255 for what is above 7, and what `exact` gives for 16 from an index on. Where none is above 7, a
// code is a byte with one bit, of which those up to that bit are kept: a pext takes eight. Zeros up to a multiple of 32.
template <class Exact>
[[gnu::always_inline]] inline void put_quotients(bit_appender& to, const uint8_t* q, size_t n, Exact&& exact) {
  const __m256i minus_one = _mm256_set1_epi8(-1), one_of = powers(), above = _mm256_set1_epi8(127 - 7);
  bit_appender out = to;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i of = load256(q + i), code = _mm256_shuffle_epi8(one_of, of),
                  upto = _mm256_add_epi8(_mm256_add_epi8(code, code), minus_one);
    const auto is_long = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_adds_epu8(of, above)));
    alignas(32) uint64_t codes[4], masks[4];
    store256(codes, code);
    store256(masks, upto);
    __asm__("" : "+m"(codes), "+m"(masks));  // loads are cheaper than what gcc takes lanes out with
    for (unsigned h = 0; h < 2 && i + 16 * h < n; ++h) {
      const auto length0 = static_cast<unsigned>(_mm_popcnt_u64(masks[2 * h])),
                 length = length0 + static_cast<unsigned>(_mm_popcnt_u64(masks[2 * h + 1]));
      const size_t there = n - i - 16 * h;
      if (length > 56 || (is_long >> 16 * h & 0xffff) || there < 16) {
        out = put_sixteen(out, exact(i + 16 * h), there < 16 ? there : 16);
        continue;
      }
      const uint64_t first = _pext_u64(codes[2 * h], masks[2 * h]), second = _pext_u64(codes[2 * h + 1], masks[2 * h + 1]);
      out.put(first | second << length0, length);
    }
  }
  to = out;
}

}  // namespace dr
DR_ISA_END
#endif
