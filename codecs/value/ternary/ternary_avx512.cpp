// Ternary values sixteen at a time. Products and sums are exact or those of scalar, so the digits are, too.
#include "codecs/value/ternary/ternary_kernel.hpp"
#include "primitive/rng_vectors.hpp"
#include "primitive/sum_tree_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

struct value_avx512 {
  __m512d operator()(__m512d v) const { return v; }
};
struct square_avx512 {
  __m512d mean;
  __m512d operator()(__m512d v) const {
    const __m512d off = _mm512_sub_pd(v, mean);
    return _mm512_mul_pd(off, off);
  }
};

}  // namespace

template <class T>
double ternary_squares_avx512(const typename T::bits* values, uint64_t n, uint32_t& largest) {
  double sum = 0;
  largest = 0;
  for (uint64_t first = 0; first < n; first += sum_tile) {  // while a tile is in L1
    const uint64_t length = std::min<uint64_t>(n - first, sum_tile);
    largest = std::max(largest, ternary_largest_with<T>(values + first, length));
    sum += tree_sum_avx512<T>(values + first, length, value_avx512{}, [](double v) { return v; });
  }
  const double mean = sum / static_cast<double>(n);
  return tree_sum_avx512<T>(values, n, square_avx512{_mm512_set1_pd(mean)},
                            [=](double v) { return ternary_square(v, mean); });
}

// |v| > k · scale / 2^24, k the 24 bits of a draw, is a question of the difference's sign. An f32 has it: the difference
// is rounded once, and is a multiple of 2^-149 if the scale is not tiny (of scale / 2^24 the last bit is 2^-47 of the
// first), so that it is not rounded to 0.
template <class T>
void ternary_draw_avx512(const typename T::bits* values, size_t n, float scale, uint64_t key, uint64_t first,
                         uint8_t* digits) {
  if (scale < 0x1p-100f) return ternary_draw_scalar<T>(values, n, scale, key, first, digits);
  draws_8 draws(key, first);
  const __m512 step = _mm512_set1_ps(scale * 0x1p-24f);
  for (size_t i = 0; i < n; i += 16) {
    const auto some = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
    const __m512 v = load_16<T>(values + i, some);
    const __m512i low = draws.next_upper(), high = draws.next_upper();
    const __m512 beyond = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(drawn_16(low, high)), step, _mm512_abs_ps(v));
    const __mmask16 selected = _mm512_cmp_ps_mask(beyond, _mm512_setzero_ps(), _CMP_GT_OQ);
    const auto below = static_cast<__mmask16>(selected & _mm512_movepi32_mask(_mm512_castps_si512(v)));
    const __m128i above = _mm_mask_mov_epi8(_mm_set1_epi8(1), selected, _mm_set1_epi8(2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(digits + i), _mm_mask_mov_epi8(above, below, _mm_setzero_si128()));
  }
}

template double ternary_squares_avx512<f32_type>(const f32_type::bits*, uint64_t, uint32_t&);
template double ternary_squares_avx512<f16_type>(const f16_type::bits*, uint64_t, uint32_t&);
template double ternary_squares_avx512<bf16_type>(const bf16_type::bits*, uint64_t, uint32_t&);
template void ternary_draw_avx512<f32_type>(const f32_type::bits*, size_t, float, uint64_t, uint64_t, uint8_t*);
template void ternary_draw_avx512<f16_type>(const f16_type::bits*, size_t, float, uint64_t, uint64_t, uint8_t*);
template void ternary_draw_avx512<bf16_type>(const bf16_type::bits*, size_t, float, uint64_t, uint64_t, uint8_t*);

}  // namespace dr
DR_ISA_END
#endif
