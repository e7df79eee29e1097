// Codes eight at a time.
#include "codecs/value/dynamic_tree/dynamic_tree_kernel.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i dynamic_tree_codes_avx2(__m256 v, __m256 scale) {
  const __m256i bits = _mm256_castps_si256(v), sign = _mm256_set1_epi32(static_cast<int>(0x80000000));
  const __m256i y = _mm256_castps_si256(_mm256_div_ps(_mm256_castsi256_ps(_mm256_andnot_si256(sign, bits)), scale));
  const __m256i bucket =
      _mm256_sub_epi32(_mm256_srli_epi32(y, dynamic_tree_shift), _mm256_set1_epi32(dynamic_tree_first));
  const __m256i entry = _mm256_i32gather_epi32(reinterpret_cast<const int*>(dynamic_tree_search.data()),
                                               _mm256_max_epi32(bucket, _mm256_setzero_si256()), 4);
  const __m256i place = _mm256_and_si256(y, _mm256_set1_epi32(dynamic_tree_unreached - 1)),
                least = _mm256_and_si256(entry, _mm256_set1_epi32(0x3ffff));
  // One more, unless the threshold is above.
  const __m256i below = _mm256_cmpgt_epi32(least, place);
  const __m256i code = _mm256_add_epi32(_mm256_add_epi32(_mm256_srli_epi32(entry, 18), _mm256_set1_epi32(1)), below);
  return _mm256_or_si256(code, _mm256_srli_epi32(_mm256_and_si256(bits, sign), 24));
}

}  // namespace

template <class T>
void dynamic_tree_encode_avx2(const typename T::bits* values, uint64_t n, uint8_t* out) {
  const float scale = T::to_f32(largest_magnitude_with<T>(values, n));
  store(out, scale);
  uint8_t* const codes = out + dynamic_tree_head;
  uint64_t i = 0;
  const __m256 by = _mm256_set1_ps(scale);
  if (scale > 0)
    for (; i + 16 <= n; i += 16) {
      const __m256i low = dynamic_tree_codes_avx2(load_8<T>(values + i), by),
                    high = dynamic_tree_codes_avx2(load_8<T>(values + i + 8), by);
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i),
                       _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
  dynamic_tree_codes_of<T>(values, i, n, scale, codes);
}
template void dynamic_tree_encode_avx2<f32_type>(const f32_type::bits*, uint64_t, uint8_t*);
template void dynamic_tree_encode_avx2<f16_type>(const f16_type::bits*, uint64_t, uint8_t*);
template void dynamic_tree_encode_avx2<bf16_type>(const bf16_type::bits*, uint64_t, uint8_t*);

}  // namespace dr
DR_ISA_END
#endif
