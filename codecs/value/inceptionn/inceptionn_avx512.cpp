// Decode of sixteen values at a time: an expansion takes the values of each stream.
#include "codecs/value/inceptionn/inceptionn_kernel.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

uint64_t inceptionn_ones(uint32_t mask) { return static_cast<uint64_t>(_mm_popcnt_u32(mask)); }

template <class T>
void inceptionn_join_avx512(const inceptionn_streams<T>& from, uint64_t n, const inceptionn_units& unit,
                            typename T::bits* out) {
  const __m512 of_shorts = _mm512_set1_ps(unit.shorts), of_longs = _mm512_set1_ps(unit.longs);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000));
  inceptionn_counts counts;
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint32_t tags = 0;
    std::memcpy(&tags, from.tags + i / 4, 4);
    const uint32_t low = _pext_u32(tags, 0x55555555), high = _pext_u32(tags, 0xaaaaaaaa);
    const uint32_t shorts = low & ~high, longs = high & ~low, raws = low & high;
    const __m512i s = _mm512_cvtepu8_epi32(
        _mm_maskz_expand_epi8(static_cast<__mmask16>(shorts),
                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.shorts + counts.shorts))));
    const __m512i l = _mm512_cvtepu16_epi32(
        _mm256_maskz_expand_epi16(static_cast<__mmask16>(longs),
                                  _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from.longs + counts.longs))));
    const __m512i q =
        _mm512_or_si512(_mm512_and_si512(s, _mm512_set1_epi32(0x7f)), _mm512_and_si512(l, _mm512_set1_epi32(0x7fff)));
    const __m512i negative = _mm512_or_si512(_mm512_slli_epi32(s, 24), _mm512_slli_epi32(l, 16));
    const __m512 by = _mm512_mask_mov_ps(of_longs, static_cast<__mmask16>(shorts), of_shorts);
    const __m512i magnitude = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(q), by));
    __m512i v = _mm512_ternarylogic_epi32(magnitude, negative, sign, 0xf8);  // magnitude | (negative & sign)
    if (raws)
      v = _mm512_mask_expand_epi32(v, static_cast<__mmask16>(raws),
                                   _mm512_castps_si512(load_16<T>(from.raws + counts.raws)));
    store_16<T>(_mm512_castsi512_ps(v), out + i);  // below 2^15, or a number that the type has
    counts.shorts += inceptionn_ones(shorts);
    counts.longs += inceptionn_ones(longs);
    counts.raws += inceptionn_ones(raws);
  }
  inceptionn_join_scalar<T>(from, i, n, unit, counts, out);
}

}  // namespace

template <class T>
inceptionn_verdict inceptionn_decode_avx512(const uint8_t* in, uint64_t size, uint64_t n, const inceptionn_units& unit,
                                            typename T::bits* out) {
  return inceptionn_decode_with<T, inceptionn_join_avx512<T>>(in, size, n, unit, out);
}
template inceptionn_verdict inceptionn_decode_avx512<f32_type>(const uint8_t*, uint64_t, uint64_t,
                                                               const inceptionn_units&, uint32_t*);
template inceptionn_verdict inceptionn_decode_avx512<f16_type>(const uint8_t*, uint64_t, uint64_t,
                                                               const inceptionn_units&, uint16_t*);
template inceptionn_verdict inceptionn_decode_avx512<bf16_type>(const uint8_t*, uint64_t, uint64_t,
                                                                const inceptionn_units&, uint16_t*);

}  // namespace dr
DR_ISA_END
#endif
