// Codes sixteen at a time, numbers eight at a time.
#include "codecs/value/natural/natural_kernel.hpp"
#include "primitive/rng_vectors.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i natural_codes_avx2(__m256 v, __m256 scale, __m256i up) {
  const __m256i bits = _mm256_castps_si256(v), sign = _mm256_set1_epi32(static_cast<int>(0x80000000));
  const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_andnot_si256(sign, bits)), scale);
  const __m256i code = _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(scaled), up), 23);
  return _mm256_or_si256(code, _mm256_srli_epi32(_mm256_and_si256(bits, sign), 24));
}

}  // namespace

template <class T>
void natural_encode_avx2(const typename T::bits* values, uint64_t n, natural_rounding rounding, uint64_t key,
                         uint8_t* out) {
  const uint32_t highest = natural_highest<T>(largest_magnitude_with<T>(values, n));
  const float scale = natural_scale(highest);
  out[0] = static_cast<uint8_t>(highest);
  uint8_t* const codes = out + 1;
  const __m256 by = _mm256_set1_ps(scale);
  const __m256i half = _mm256_set1_epi32(natural_half);
  uint64_t i = 0;
  const auto pair = [&](auto up) {
    for (; i + 16 <= n; i += 16) {
      const __m256i low = natural_codes_avx2(load_8<T>(values + i), by, up()),
                    high = natural_codes_avx2(load_8<T>(values + i + 8), by, up());
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
      const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), bytes);
    }
  };
  if (rounding == natural_nearest) {
    pair([&] { return half; });
  } else {
    draws_4 draws(key, 0);
    pair([&] { return _mm256_srli_epi32(draws.next(), 9); });
  }
  natural_codes_of<T>(values, i, n, scale, rounding, key, codes);
}
template void natural_encode_avx2<f32_type>(const f32_type::bits*, uint64_t, natural_rounding, uint64_t, uint8_t*);
template void natural_encode_avx2<f16_type>(const f16_type::bits*, uint64_t, natural_rounding, uint64_t, uint8_t*);
template void natural_encode_avx2<bf16_type>(const bf16_type::bits*, uint64_t, natural_rounding, uint64_t, uint8_t*);

void natural_decode_avx2(const uint8_t* codes, uint64_t n, uint32_t highest, uint32_t* out) {
  uint64_t i = 0;
  if (highest < natural_highest_most) {  // 2^128 has no f32 that a code could be multiplied by
    const __m256 by = _mm256_set1_ps(natural_power(static_cast<int>(highest) - 127));
    const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000)), field = _mm256_set1_epi32(0x7f << 23);
    for (; i + 8 <= n; i += 8) {
      const __m256i c = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
      const __m256i power = _mm256_and_si256(_mm256_slli_epi32(c, 23), field);
      const __m256 magnitude = _mm256_mul_ps(_mm256_castsi256_ps(power), by);
      const __m256i negative = _mm256_and_si256(_mm256_slli_epi32(c, 24), sign);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                          _mm256_or_si256(_mm256_castps_si256(magnitude), negative));
    }
  }
  natural_decode_scalar<f32_type>(codes + i, n - i, highest, out + i);
}

}  // namespace dr
DR_ISA_END
#endif
