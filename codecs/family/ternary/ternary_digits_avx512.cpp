// 40 digits to 8 bytes, 16 bytes to 80 numbers.
#include "codecs/family/ternary/ternary_digits.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

void ternary_pack_avx512(const uint8_t* digits, size_t groups, uint8_t* out) {
  alignas(64) uint8_t place[64];
  for (uint32_t i = 0; i < 64; ++i) place[i] = static_cast<uint8_t>(ternary_group * (i / 8) + i % 8);
  const __m512i places = _mm512_load_si512(place), weights = _mm512_set1_epi64(0x0103091b51);  // 81, 27, 9, 3, 1, 0, …
  size_t g = 0;
  for (; g + 8 <= groups; g += 8, digits += 40) {
    const __m512i eight = _mm512_permutexvar_epi8(places, _mm512_loadu_si512(digits));
    // Sums of two digits are below 256, so the sum of all bytes is that of the group.
    const __m512i sums = _mm512_sad_epu8(_mm512_maddubs_epi16(eight, weights), _mm512_setzero_si512());
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + g), _mm512_cvtepi64_epi8(sums));
  }
  ternary_pack_scalar(digits, groups - g, out + g);
}

namespace {

constexpr ternary_places<16> ternary_places_16;

__m512i ternary_all_avx512(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
void ternary_store_avx512(uint32_t* out, __m512i v) { _mm512_storeu_si512(out, v); }
void ternary_store_avx512(uint16_t* out, __m512i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(v));
}

}  // namespace

template <class Bits>
void ternary_unpack_avx512(const uint8_t* in, uint64_t n, const Bits* numbers, Bits* out) {
  const __m512i low = ternary_all_avx512(numbers[0]), middle = ternary_all_avx512(numbers[1]),
                high = ternary_all_avx512(numbers[2]), third = ternary_all_avx512(ternary_third),
                thirds = ternary_all_avx512(ternary_thirds);
  uint64_t i = 0;
  for (; i + 80 <= n; i += 80, in += 16) {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
    for (size_t m = 0; m < ternary_group; ++m) {
      const __m512i y =
          _mm512_mullo_epi32(_mm512_shuffle_epi8(bytes, _mm512_load_si512(ternary_places_16.byte + 16 * m)),
                             _mm512_load_si512(ternary_places_16.factor + 16 * m));
      const __m512i from_middle = _mm512_mask_mov_epi32(low, _mm512_cmpge_epu32_mask(y, third), middle);
      ternary_store_avx512(out + i + 16 * m,
                           _mm512_mask_mov_epi32(from_middle, _mm512_cmpge_epu32_mask(y, thirds), high));
    }
  }
  ternary_unpack_scalar(in, n - i, numbers, out + i);
}

template <class T>
uint32_t ternary_largest_avx512(const typename T::bits* values, uint64_t n) {
  return ternary_largest_with<T>(values, n);
}

template uint32_t ternary_largest_avx512<f32_type>(const f32_type::bits*, uint64_t);
template uint32_t ternary_largest_avx512<f16_type>(const f16_type::bits*, uint64_t);
template uint32_t ternary_largest_avx512<bf16_type>(const bf16_type::bits*, uint64_t);
template void ternary_unpack_avx512<uint32_t>(const uint8_t*, uint64_t, const uint32_t*, uint32_t*);
template void ternary_unpack_avx512<uint16_t>(const uint8_t*, uint64_t, const uint16_t*, uint16_t*);

}  // namespace dr
DR_ISA_END
#endif
