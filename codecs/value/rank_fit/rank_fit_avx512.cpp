// Codes sixteen at a time: comparisons of integers and look-ups, so the bytes are scalar's.
#include <type_traits>

#include "codecs/value/rank_fit/rank_fit_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

template <class T>
__m512i rank_fit_load_avx512(const typename T::bits* from) {  // as bits of f32
  if constexpr (sizeof(typename T::bits) == 4) return _mm512_loadu_si512(from);
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if constexpr (std::is_same_v<T, f16_type>) return _mm512_castps_si512(_mm512_cvtph_ps(half));
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

}  // namespace

template <class T>
void rank_fit_encode_avx512(const typename T::bits* values, const rank_fit_layout& l, const uint32_t* threshold,
                            uint8_t* out) {
  const unsigned rest = l.bits > 5 ? l.bits - 5 : 0, steps = l.bits - rest;
  uint32_t coarse[32] = {};
  for (unsigned j = 0; j < 1u << steps; ++j) coarse[j] = threshold[j << rest];
  const __m512i low = _mm512_loadu_si512(coarse), high = _mm512_loadu_si512(coarse + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const uint64_t mask = rank_fit_of_bytes(l.bits);
  uint8_t* codes = out + l.codes;
  uint64_t i = 0;
  for (; i + 16 <= l.n && codes + l.bits + 8 <= out + l.size; i += 16, codes += 2 * l.bits) {
    const __m512i v = rank_fit_load_avx512<T>(values + i), key = _mm512_and_si512(v, magnitude);
    __m512i code = _mm512_setzero_si512();
    for (int step = 1 << steps >> 1; step > 0; step /= 2) {
      const __m512i s = _mm512_set1_epi32(step);
      const __m512i t = _mm512_permutex2var_epi32(low, _mm512_add_epi32(code, s), high);
      code = _mm512_mask_add_epi32(code, _mm512_cmpge_epi32_mask(key, t), code, s);
    }
    code = _mm512_sll_epi32(code, _mm_cvtsi32_si128(static_cast<int>(rest)));
    for (int step = 1 << rest >> 1; step > 0; step /= 2) {
      const __m512i s = _mm512_set1_epi32(step);
      const __m512i t = _mm512_i32gather_epi32(_mm512_add_epi32(code, s), threshold, 4);
      code = _mm512_mask_add_epi32(code, _mm512_cmpge_epi32_mask(key, t), code, s);
    }
    const __m128i sixteen = _mm512_cvtepi32_epi8(code);
    store(codes, static_cast<uint64_t>(_pext_u64(static_cast<uint64_t>(_mm_cvtsi128_si64(sixteen)), mask)));
    store(codes + l.bits, static_cast<uint64_t>(_pext_u64(static_cast<uint64_t>(_mm_extract_epi64(sixteen, 1)), mask)));
    store(out + l.signs + i / 8, static_cast<uint16_t>(_mm512_movepi32_mask(v)));
  }
  rank_fit_put_codes<T>(values, i, l.n, l.bits, threshold, out + l.signs, out + l.codes);
}

template <class T>
void rank_fit_decode_avx512(const uint8_t* in, const rank_fit_layout& l, const typename T::bits* level,
                            typename T::bits* out) {
  uint32_t wide[rank_fit_levels_max];
  for (unsigned i = 0; i < rank_fit_levels_max; ++i) wide[i] = i < 1u << l.bits ? level[i] : 0;
  const __m512i low = _mm512_loadu_si512(wide), high = _mm512_loadu_si512(wide + 16);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(uint32_t{T::magnitude_mask} + 1));
  const uint64_t mask = rank_fit_of_bytes(l.bits);
  const uint8_t* codes = in + l.codes;
  uint64_t i = 0;
  for (; i + 16 <= l.n && codes + l.bits + 8 <= in + l.size; i += 16, codes += 2 * l.bits) {
    const uint64_t first = _pdep_u64(load<uint64_t>(codes), mask),
                   second = _pdep_u64(load<uint64_t>(codes + l.bits), mask);
    const __m512i code =
        _mm512_cvtepu8_epi32(_mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first)));
    const __m512i v = l.bits <= 5 ? _mm512_permutex2var_epi32(low, code, high) : _mm512_i32gather_epi32(code, wide, 4);
    const __m512i y = _mm512_mask_or_epi32(v, load<uint16_t>(in + l.signs + i / 8), v, sign);
    if constexpr (sizeof(typename T::bits) == 4)
      _mm512_storeu_si512(out + i, y);
    else
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(y));
  }
  rank_fit_get_values<T>(in + l.signs, in + l.codes, i, l.n, l.bits, level, out);
}

template void rank_fit_encode_avx512<f32_type>(const f32_type::bits*, const rank_fit_layout&, const uint32_t*,
                                               uint8_t*);
template void rank_fit_decode_avx512<f32_type>(const uint8_t*, const rank_fit_layout&, const f32_type::bits*,
                                               f32_type::bits*);
template void rank_fit_encode_avx512<f16_type>(const f16_type::bits*, const rank_fit_layout&, const uint32_t*,
                                               uint8_t*);
template void rank_fit_decode_avx512<f16_type>(const uint8_t*, const rank_fit_layout&, const f16_type::bits*,
                                               f16_type::bits*);
template void rank_fit_encode_avx512<bf16_type>(const bf16_type::bits*, const rank_fit_layout&, const uint32_t*,
                                                uint8_t*);
template void rank_fit_decode_avx512<bf16_type>(const uint8_t*, const rank_fit_layout&, const bf16_type::bits*,
                                                bf16_type::bits*);

}  // namespace dr
DR_ISA_END
#endif
