// Signs 32 at a time: comparisons become bits, and bits choose between two numbers.
#include "codecs/value/sign/sign_kernel.hpp"
#include "primitive/sum_tree_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

__m256i sign_load_avx2(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void sign_store_avx2(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }

// Ones of 32 values. Without the sign bit's place, -0 is 0, and what is below zero is above it.
uint32_t sign_ones_avx2(const uint32_t* v) {
  const __m256i flip = _mm256_set1_epi32(INT32_MIN), zero = _mm256_setzero_si256();
  uint32_t ones = 0;
  for (unsigned k = 0; k < 4; ++k) {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_xor_si256(sign_load_avx2(v + 8 * k), flip), zero);
    ones |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(below))) << (8 * k);
  }
  return ones;
}
uint32_t sign_ones_avx2(const uint16_t* v) {
  const __m256i flip = _mm256_set1_epi16(INT16_MIN), zero = _mm256_setzero_si256();
  const __m256i low = _mm256_cmpgt_epi16(_mm256_xor_si256(sign_load_avx2(v), flip), zero),
                high = _mm256_cmpgt_epi16(_mm256_xor_si256(sign_load_avx2(v + 16), flip), zero);
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8)));
}

// 32 numbers by 32 bits.
void sign_choose_avx2(uint32_t bits, uint32_t below, uint32_t other, uint32_t* out) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(below))),
               zeros = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(other)));
  __m256i shift = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);  // a bit to the sign's place
  for (unsigned k = 0; k < 4; ++k, shift = _mm256_sub_epi32(shift, _mm256_set1_epi32(8)))
    _mm256_storeu_ps(reinterpret_cast<float*>(out + 8 * k),
                     _mm256_blendv_ps(zeros, ones, _mm256_castsi256_ps(_mm256_sllv_epi32(all, shift))));
}
void sign_choose_avx2(uint32_t bits, uint16_t below, uint16_t other, uint16_t* out) {
  const __m256i ones = _mm256_set1_epi16(static_cast<short>(below)),
                zeros = _mm256_set1_epi16(static_cast<short>(other));
  const __m256i bit =
      _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, INT16_MIN);
  for (unsigned k = 0; k < 2; ++k) {
    const __m256i all = _mm256_set1_epi16(static_cast<short>(bits >> (16 * k)));
    const __m256i is_one = _mm256_cmpeq_epi16(_mm256_and_si256(all, bit), bit);
    sign_store_avx2(out + 16 * k, _mm256_blendv_epi8(zeros, ones, is_one));
  }
}

struct below_avx2 {
  __m256d operator()(__m256d v) const {
    const __m256d zero = _mm256_setzero_pd();
    return _mm256_max_pd(_mm256_sub_pd(zero, v), zero);
  }
};
struct other_avx2 {
  __m256d operator()(__m256d v) const { return _mm256_max_pd(v, _mm256_setzero_pd()); }
};

}  // namespace

template <class T>
void sign_pack_avx2(const typename T::bits* values, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) store(out + i / 8, sign_ones_avx2(values + i));
  sign_pack_scalar<T>(values + i, n - i, out + i / 8);
}

template <class T>
void sign_unpack_avx2(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                      typename T::bits* out) {
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) sign_choose_avx2(load<uint32_t>(bits + i / 8), below, other, out + i);
  sign_unpack_scalar<T>(bits + i / 8, n - i, below, other, out + i);
}

template <class T>
sign_sums sign_sums_avx2(const typename T::bits* values, uint64_t n) {
  sign_sums sums{0, 0};
  for (uint64_t first = 0; first < n; first += sum_tile) {  // a tile is in L1 for the other sum
    const uint64_t length = n - first < sum_tile ? n - first : sum_tile;
    sums.below += tree_sum_avx2<T>(values + first, length, below_avx2{}, magnitude_below);
    sums.other += tree_sum_avx2<T>(values + first, length, other_avx2{}, magnitude_other);
  }
  return sums;
}

template void sign_pack_avx2<f32_type>(const f32_type::bits*, uint64_t, uint8_t*);
template void sign_pack_avx2<f16_type>(const f16_type::bits*, uint64_t, uint8_t*);
template void sign_pack_avx2<bf16_type>(const bf16_type::bits*, uint64_t, uint8_t*);
template void sign_unpack_avx2<f32_type>(const uint8_t*, uint64_t, uint32_t, uint32_t, uint32_t*);
template void sign_unpack_avx2<f16_type>(const uint8_t*, uint64_t, uint16_t, uint16_t, uint16_t*);
template void sign_unpack_avx2<bf16_type>(const uint8_t*, uint64_t, uint16_t, uint16_t, uint16_t*);
template sign_sums sign_sums_avx2<f32_type>(const f32_type::bits*, uint64_t);
template sign_sums sign_sums_avx2<f16_type>(const f16_type::bits*, uint64_t);
template sign_sums sign_sums_avx2<bf16_type>(const bf16_type::bits*, uint64_t);

}  // namespace dr
DR_ISA_END
#endif
