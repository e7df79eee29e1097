// 80 digits to 16 bytes, 8 bytes to 40 numbers.
#include "codecs/family/ternary/ternary_digits.hpp"
#include "primitive/bits.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

void ternary_pack_avx2(const uint8_t* digits, size_t groups, uint8_t* out) {
  constexpr char no = -128;
  const __m256i places =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, no, no, no, 5, 6, 7, 8, 9, no, no, no));
  const __m256i weights =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(81, 27, 9, 3, 1, 0, 0, 0, 81, 27, 9, 3, 1, 0, 0, 0));
  const __m256i in_order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, no, no, no, no, no, no, no, no));
  size_t g = 0;
  for (; g + 16 <= groups; g += 16, digits += 80) {
    __m256i bytes = _mm256_setzero_si256();  // the lowest four of each 64 bits, one per step
    for (int k = 0; k < 4; ++k) {
      const auto* const from = reinterpret_cast<const __m128i*>(digits + 20 * k);
      const auto* const next = reinterpret_cast<const __m128i*>(digits + 20 * k + 10);
      const __m256i four = _mm256_shuffle_epi8(_mm256_set_m128i(_mm_loadu_si128(next), _mm_loadu_si128(from)), places);
      // Sums of two digits are below 256, so the sum of all bytes is that of the group.
      const __m256i sums = _mm256_sad_epu8(_mm256_maddubs_epi16(four, weights), _mm256_setzero_si256());
      bytes = _mm256_or_si256(bytes, _mm256_slli_epi64(sums, 8 * k));
    }
    bytes = _mm256_shuffle_epi8(bytes, in_order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g),
                     _mm_unpacklo_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
  }
  ternary_pack_scalar(digits, groups - g, out + g);
}

namespace {

constexpr ternary_places<8> ternary_places_8;

__m256i ternary_all_avx2(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
void ternary_store_avx2(uint32_t* out, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v); }
void ternary_store_avx2(uint16_t* out, __m256i v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(words));
}

}  // namespace

template <class Bits>
void ternary_unpack_avx2(const uint8_t* in, uint64_t n, const Bits* numbers, Bits* out) {
  const __m256i low = ternary_all_avx2(numbers[0]), middle = ternary_all_avx2(numbers[1]),
                high = ternary_all_avx2(numbers[2]);
  const __m256i flip = ternary_all_avx2(0x80000000),  // unsigned comparisons by signed ones
      third = ternary_all_avx2((ternary_third - 1) ^ 0x80000000),
                thirds = ternary_all_avx2((ternary_thirds - 1) ^ 0x80000000);
  uint64_t i = 0;
  for (; i + 40 <= n; i += 40, in += 8) {
    const __m256i bytes = _mm256_set1_epi64x(load<long long>(in));
    for (size_t m = 0; m < ternary_group; ++m) {
      const auto* const place = reinterpret_cast<const __m256i*>(ternary_places_8.byte + 8 * m);
      const auto* const factor = reinterpret_cast<const __m256i*>(ternary_places_8.factor + 8 * m);
      const __m256i y = _mm256_xor_si256(
          _mm256_mullo_epi32(_mm256_shuffle_epi8(bytes, _mm256_load_si256(place)), _mm256_load_si256(factor)), flip);
      const __m256i from_middle = _mm256_blendv_epi8(low, middle, _mm256_cmpgt_epi32(y, third));
      ternary_store_avx2(out + i + 8 * m, _mm256_blendv_epi8(from_middle, high, _mm256_cmpgt_epi32(y, thirds)));
    }
  }
  ternary_unpack_scalar(in, n - i, numbers, out + i);
}

template <class T>
uint32_t ternary_largest_avx2(const typename T::bits* values, uint64_t n) {
  return ternary_largest_with<T>(values, n);
}

template uint32_t ternary_largest_avx2<f32_type>(const f32_type::bits*, uint64_t);
template uint32_t ternary_largest_avx2<f16_type>(const f16_type::bits*, uint64_t);
template uint32_t ternary_largest_avx2<bf16_type>(const bf16_type::bits*, uint64_t);
template void ternary_unpack_avx2<uint32_t>(const uint8_t*, uint64_t, const uint32_t*, uint32_t*);
template void ternary_unpack_avx2<uint16_t>(const uint8_t*, uint64_t, const uint16_t*, uint16_t*);

}  // namespace dr
DR_ISA_END
#endif
