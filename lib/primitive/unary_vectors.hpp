// Unary codes, q zeros and a one, written by AVX2 and BMI2.
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

// 2^q for bytes q below 8, 0 for bytes from 8 to 15.
inline __m256i powers() {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
}

[[gnu::noinline]] inline bit_appender put_long_unaries(bit_appender out, const uint16_t* q, size_t n) {
  for (size_t i = 0; i < n; ++i) out.put_unary(q[i]);
  return out;
}

// Writes the unary codes of n quotients. q[i] is the quotient, or 255 if exact(i) is above 254; zeros pad q to a
// multiple of 32. A quotient of up to 7 is a byte with one set bit; one pext extracts eight codes, each byte up to its
// set bit. A larger one is a zero byte, which is part of the code, and the rest of the code after these 8 bits.
template <class Exact>
[[gnu::always_inline]] inline void put_quotients(bit_appender& to, const uint8_t* q, size_t n, Exact&& exact) {
  constexpr unsigned put_max = 56;
  const __m256i minus_one = _mm256_set1_epi8(-1), one_of = powers(), above = _mm256_set1_epi8(127 - 7),
                none = _mm256_set1_epi8(15);
  bit_appender out = to;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i of = load256(q + i), code = _mm256_shuffle_epi8(one_of, _mm256_min_epu8(of, none)),
                  upto = _mm256_add_epi8(_mm256_add_epi8(code, code), minus_one);
    const auto is_long = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_adds_epu8(of, above)));
    alignas(32) uint64_t codes[4], masks[4];
    store256(codes, code);
    store256(masks, upto);
    __asm__("" : "+m"(codes), "+m"(masks));  // loads are cheaper than the instructions by which gcc extracts lanes
    const auto length_of = [&](unsigned j) { return static_cast<unsigned>(_mm_popcnt_u64(masks[j])); };
    const unsigned first = length_of(0), low = first + length_of(1), third = length_of(2), high = third + length_of(3);
    if (is_long == 0 && i + 32 <= n && low <= put_max && high <= put_max) {
      const auto half = [&](unsigned j, unsigned length) {
        return _pext_u64(codes[j], masks[j]) | _pext_u64(codes[j + 1], masks[j + 1]) << length;
      };
      out.put(half(0, first), low);
      out.put(half(2, third), high);
      continue;
    }
    for (unsigned j = 0; j < 4 && i + 8 * j < n; ++j) {
      const auto there = static_cast<unsigned>(n - i - 8 * j < 8 ? n - i - 8 * j : 8);
      uint64_t mask = masks[j] & low_mask(8 * there);
      const auto put_upto = [&](uint64_t bits) {  // of the mask; of at most 64
        const uint64_t some = mask & bits;
        const auto length = static_cast<unsigned>(_mm_popcnt_u64(some));
        const uint64_t word = _pext_u64(codes[j], some);
        out.put(word & low_mask(32), length < 32 ? length : 32);
        if (length > 32) out.put(word >> 32, length - 32);
        mask &= ~bits;
      };
      uint64_t longs = is_long >> 8 * j & low_mask(there);
      const auto quotient = [&](size_t at) -> uint64_t { return q[at] < 255 ? q[at] : exact(at); };
      if (popcount(longs) > 2) {  // then one by one is faster
        for (size_t l = 0; l < there; ++l) out.put_unary(quotient(i + 8 * j + l));
        continue;
      }
      for (; longs; longs &= longs - 1) {
        const unsigned at = countr_zero(longs);
        put_upto(low_mask(8 * at + 8));
        out.put_unary(quotient(i + 8 * j + at) - 8);
      }
      if (mask) put_upto(~uint64_t{0});
    }
  }
  to = out;
}

}  // namespace dr
DR_ISA_END
#endif
