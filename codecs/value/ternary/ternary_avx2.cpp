// Ternary values eight at a time. Products and sums are exact or those of scalar, so the digits are, too.
#include "codecs/value/ternary/ternary_kernel.hpp"
#include "primitive/rng_vectors.hpp"
#include "primitive/sum_tree_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

struct value_avx2 {
  __m256d operator()(__m256d v) const { return v; }
};
struct square_avx2 {
  __m256d mean;
  __m256d operator()(__m256d v) const {
    const __m256d off = _mm256_sub_pd(v, mean);
    return _mm256_mul_pd(off, off);
  }
};

}  // namespace

template <class T>
double ternary_squares_avx2(const typename T::bits* values, uint64_t n, uint32_t& largest) {
  double sum = 0;
  largest = 0;
  for (uint64_t first = 0; first < n; first += sum_tile) {  // while a tile is in L1
    const uint64_t length = std::min<uint64_t>(n - first, sum_tile);
    largest = std::max(largest, ternary_largest_with<T>(values + first, length));
    sum += tree_sum_avx2<T>(values + first, length, value_avx2{}, [](double v) { return v; });
  }
  const double mean = sum / static_cast<double>(n);
  return tree_sum_avx2<T>(values, n, square_avx2{_mm256_set1_pd(mean)},
                          [=](double v) { return ternary_square(v, mean); });
}

template <class T>
void ternary_draw_avx2(const typename T::bits* values, size_t n, float scale, uint64_t key, uint64_t first,
                       uint8_t* digits) {
  draws_4 draws(key, first);
  const __m256d step = _mm256_set1_pd(double{scale} * 0x1p-24);
  const __m256i exponent = _mm256_set1_epi64x(0x4330000000000000);  // of 2^52, whose last place is 1
  const __m256i one = _mm256_set1_epi32(1);
  // Draws of a few values, then their digits: in one loop the way to a digit would be longer than schedulers see.
  constexpr size_t few = 256;
  alignas(32) double limits[few];
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    if (i % few == 0)
      for (size_t k = 0; k < few && i + k < n; k += 4) {
        const __m256i drawn = _mm256_or_si256(_mm256_srli_epi64(draws.next(), 40), exponent);
        const __m256d whole = _mm256_sub_pd(_mm256_castsi256_pd(drawn), _mm256_castsi256_pd(exponent));
        _mm256_store_pd(limits + k, _mm256_mul_pd(whole, step));
      }
    const __m256 v = load_8<T>(values + i),
                 magnitude = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
    const double* const limit = limits + i % few;
    const __m256d low = _mm256_cmp_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(magnitude)), _mm256_load_pd(limit),
                                      _CMP_GT_OQ),
                  high = _mm256_cmp_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(magnitude, 1)), _mm256_load_pd(limit + 4),
                                       _CMP_GT_OQ);
    const __m256i selected = _mm256_permute4x64_epi64(
        _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high), 0x88)), 0xd8);
    const __m256i sign = _mm256_or_si256(_mm256_srai_epi32(_mm256_castps_si256(v), 31), one);
    const __m256i digit = _mm256_add_epi32(_mm256_and_si256(selected, sign), one);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(digit), _mm256_extracti128_si256(digit, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(digits + i), _mm_packus_epi16(words, words));
  }
  ternary_draw_scalar<T>(values + i, n - i, scale, key, first + i, digits + i);
}

template double ternary_squares_avx2<f32_type>(const f32_type::bits*, uint64_t, uint32_t&);
template double ternary_squares_avx2<f16_type>(const f16_type::bits*, uint64_t, uint32_t&);
template double ternary_squares_avx2<bf16_type>(const bf16_type::bits*, uint64_t, uint32_t&);
template void ternary_draw_avx2<f32_type>(const f32_type::bits*, size_t, float, uint64_t, uint64_t, uint8_t*);
template void ternary_draw_avx2<f16_type>(const f16_type::bits*, size_t, float, uint64_t, uint64_t, uint8_t*);
template void ternary_draw_avx2<bf16_type>(const bf16_type::bits*, size_t, float, uint64_t, uint64_t, uint8_t*);

}  // namespace dr
DR_ISA_END
#endif
