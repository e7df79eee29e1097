// Codes and numbers sixteen at a time.
#include "codecs/value/natural/natural_kernel.hpp"
#include "primitive/rng_vectors.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

template <class T>
void natural_encode_avx512(const typename T::bits* values, uint64_t n, natural_rounding rounding, uint64_t key,
                           uint8_t* out) {
  const uint32_t highest = natural_highest<T>(largest_magnitude_with<T>(values, n));
  const float scale = natural_scale(highest);
  out[0] = static_cast<uint8_t>(highest);
  uint8_t* const codes = out + 1;
  const __m512 by = _mm512_set1_ps(scale);
  const __m512i sign = _mm512_set1_epi32(0x80), half = _mm512_set1_epi32(natural_half);
  uint64_t i = 0;
  const auto all = [&](auto up) {
    for (; i + 16 <= n; i += 16) {
      const __m512 v = load_16<T>(values + i);
      const __m512i scaled = _mm512_castps_si512(_mm512_mul_ps(_mm512_abs_ps(v), by));
      const __m512i code = _mm512_srli_epi32(_mm512_add_epi32(scaled, up()), 23),
                    high = _mm512_srli_epi32(_mm512_castps_si512(v), 24);
      // code | (high & sign)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i),
                       _mm512_cvtepi32_epi8(_mm512_ternarylogic_epi32(code, high, sign, 0xf8)));
    }
  };
  if (rounding == natural_nearest) {
    all([&] { return half; });
  } else {
    draws_8 draws(key, 0);
    all([&] { return _mm512_srli_epi32(draws.next(), 9); });
  }
  natural_codes_of<T>(values, i, n, scale, rounding, key, codes);
}
template void natural_encode_avx512<f32_type>(const f32_type::bits*, uint64_t, natural_rounding, uint64_t, uint8_t*);
template void natural_encode_avx512<f16_type>(const f16_type::bits*, uint64_t, natural_rounding, uint64_t, uint8_t*);
template void natural_encode_avx512<bf16_type>(const bf16_type::bits*, uint64_t, natural_rounding, uint64_t, uint8_t*);

void natural_decode_avx512(const uint8_t* codes, uint64_t n, uint32_t highest, uint32_t* out) {
  uint64_t i = 0;
  if (highest < natural_highest_most) {  // 2^128 has no f32 that a code could be multiplied by
    const __m512 by = _mm512_set1_ps(natural_power(static_cast<int>(highest) - 127));
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000)), field = _mm512_set1_epi32(0x7f << 23);
    for (; i + 16 <= n; i += 16) {
      const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
      const __m512i power = _mm512_and_si512(_mm512_slli_epi32(c, 23), field);
      const __m512 magnitude = _mm512_mul_ps(_mm512_castsi512_ps(power), by);
      // magnitude | (c << 24 & sign)
      _mm512_storeu_si512(
          out + i, _mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude), _mm512_slli_epi32(c, 24), sign, 0xf8));
    }
  }
  natural_decode_scalar<f32_type>(codes + i, n - i, highest, out + i);
}

}  // namespace dr
DR_ISA_END
#endif
