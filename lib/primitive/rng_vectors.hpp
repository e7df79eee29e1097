// Consecutive draws (rng.hpp) as vectors.
#pragma once

#include "primitive/cpu.hpp"
#include "primitive/rng.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

inline __m256i multiply_4(__m256i a, uint64_t by) {
  // Only the lower 32 bits of the products with the other half matter.
  const __m256i factor = _mm256_set1_epi64x(static_cast<long long>(by)),
                other = _mm256_set1_epi64x(static_cast<long long>(by << 32 | by >> 32));
  const __m256i cross = _mm256_mullo_epi32(a, other);
  const __m256i both = _mm256_add_epi64(cross, _mm256_slli_epi64(cross, 32));
  return _mm256_add_epi64(_mm256_mul_epu32(a, factor), _mm256_blend_epi32(_mm256_setzero_si256(), both, 0xaa));
}

// draw(key, position) to draw(key, position + 3), then the next four, …
class draws_4 {
 public:
  draws_4(uint64_t key, uint64_t position)
      : counter_(_mm256_set_epi64x(at(key, position + 3), at(key, position + 2), at(key, position + 1),
                                   at(key, position))) {}

  __m256i next() {
    const __m256i x = next_upper();
    return _mm256_xor_si256(x, _mm256_srli_epi64(x, 31));
  }
  // The upper 31 bits of the next draws: mix64 without its last step, which changes lower bits.
  __m256i next_upper() {
    __m256i x = counter_;
    counter_ = _mm256_add_epi64(counter_, _mm256_set1_epi64x(static_cast<long long>(4 * golden)));
    x = multiply_4(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), 0xbf58476d1ce4e5b9);
    return multiply_4(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), 0x94d049bb133111eb);
  }

 private:
  static long long at(uint64_t key, uint64_t position) { return static_cast<long long>(key + (position + 1) * golden); }

  __m256i counter_;
};

}  // namespace dr
DR_ISA_END

DR_AVX512_BEGIN
namespace dr {

// The same, eight at a time.
class draws_8 {
 public:
  draws_8(uint64_t key, uint64_t position)
      : counter_(_mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(key + (position + 1) * golden)),
                                  _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), number(golden)))) {}

  __m512i next() {
    const __m512i x = next_upper();
    return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
  }
  // Of the next draws the upper 31 bits: mix64 without its last step, which is below them.
  __m512i next_upper() {
    __m512i x = counter_;
    counter_ = _mm512_add_epi64(counter_, number(8 * golden));
    x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)), number(0xbf58476d1ce4e5b9));
    return _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)), number(0x94d049bb133111eb));
  }

 private:
  static __m512i number(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }

  __m512i counter_;
};

// The upper 24 bits of sixteen draws, which draws_8 returned in two halves.
inline __m512i drawn_16(__m512i first, __m512i second) {
  const __m512i upper = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_srli_epi32(_mm512_permutex2var_epi32(first, upper, second), 8);
}

}  // namespace dr
DR_ISA_END
#endif
