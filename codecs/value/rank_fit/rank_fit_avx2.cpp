// Codes eight at a time: comparisons of integers and look-ups, so the bytes are scalar's.
#include <type_traits>

#include "codecs/value/rank_fit/rank_fit_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

template <class T>
__m256i rank_fit_load_avx2(const typename T::bits* from) {  // as bits of f32
  const auto* const at = reinterpret_cast<const __m256i*>(from);
  if constexpr (sizeof(typename T::bits) == 4) return _mm256_loadu_si256(at);
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (std::is_same_v<T, f16_type>) return _mm256_castps_si256(_mm256_cvtph_ps(half));
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

}  // namespace

template <class T>
void rank_fit_range_avx2(const typename T::bits* values, uint64_t n, typename T::bits* range) {
  rank_fit_range_with<T>(values, n, range);  // gcc vectorises
}

template <class T>
void rank_fit_encode_avx2(const typename T::bits* values, const rank_fit_layout& l, const uint32_t* threshold,
                          uint8_t* out) {
  const unsigned rest = l.bits > 3 ? l.bits - 3 : 0, steps = l.bits - rest;
  uint32_t coarse[8] = {};
  for (unsigned j = 0; j < 1u << steps; ++j) coarse[j] = threshold[j << rest];
  const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(coarse));
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i bytes = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                         -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  const uint64_t mask = rank_fit_of_bytes(l.bits);
  uint8_t* codes = out + l.codes;
  uint64_t i = 0;
  for (; i + 8 <= l.n && codes + 8 <= out + l.size; i += 8, codes += l.bits) {
    const __m256i v = rank_fit_load_avx2<T>(values + i), key = _mm256_and_si256(v, magnitude);
    __m256i code = _mm256_setzero_si256();
    for (int step = 1 << steps >> 1; step > 0; step /= 2) {
      const __m256i s = _mm256_set1_epi32(step);
      const __m256i t = _mm256_permutevar8x32_epi32(table, _mm256_add_epi32(code, s));
      code = _mm256_add_epi32(code, _mm256_andnot_si256(_mm256_cmpgt_epi32(t, key), s));
    }
    code = _mm256_sll_epi32(code, _mm_cvtsi32_si128(static_cast<int>(rest)));
    for (int step = 1 << rest >> 1; step > 0; step /= 2) {
      const __m256i s = _mm256_set1_epi32(step);
      const __m256i t = _mm256_i32gather_epi32(reinterpret_cast<const int*>(threshold), _mm256_add_epi32(code, s), 4);
      code = _mm256_add_epi32(code, _mm256_andnot_si256(_mm256_cmpgt_epi32(t, key), s));
    }
    code = _mm256_shuffle_epi8(code, bytes);
    const __m128i eight = _mm_or_si128(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    store(codes, static_cast<uint64_t>(_pext_u64(static_cast<uint64_t>(_mm_cvtsi128_si64(eight)), mask)));
    out[l.signs + i / 8] = static_cast<uint8_t>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
  }
  rank_fit_put_codes<T>(values, i, l.n, l.bits, threshold, out + l.signs, out + l.codes);
}

template <class T>
void rank_fit_decode_avx2(const uint8_t* in, const rank_fit_layout& l, const typename T::bits* level,
                          typename T::bits* out) {
  uint32_t wide[rank_fit_levels_max];
  for (unsigned i = 0; i < rank_fit_levels_max; ++i) wide[i] = i < 1u << l.bits ? level[i] : 0;
  __m256i table[4];
  for (unsigned t = 0; t < 4; ++t) table[t] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(wide + 8 * t));
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(uint32_t{T::magnitude_mask} + 1));
  const uint64_t mask = rank_fit_of_bytes(l.bits);
  const uint8_t* codes = in + l.codes;
  const auto of = [&](unsigned t, __m256i code) {
    return _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(table[t], code));
  };
  uint64_t i = 0;
  for (; i + 8 <= l.n && codes + 8 <= in + l.size; i += 8, codes += l.bits) {
    const uint64_t eight = _pdep_u64(load<uint64_t>(codes), mask);
    const __m256i code = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(eight)));
    __m256 v;
    if (l.bits <= 3) {
      v = of(0, code);
    } else if (l.bits <= 5) {
      const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
      v = _mm256_blendv_ps(of(0, code), of(1, code), bit3);
      if (l.bits == 5)
        v = _mm256_blendv_ps(v, _mm256_blendv_ps(of(2, code), of(3, code), bit3),
                             _mm256_castsi256_ps(_mm256_slli_epi32(code, 27)));
    } else {
      v = _mm256_castsi256_ps(_mm256_i32gather_epi32(reinterpret_cast<const int*>(wide), code, 4));
    }
    const __m256i negative =
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(in[l.signs + i / 8]), lane_bit), lane_bit);
    const __m256i y = _mm256_or_si256(_mm256_castps_si256(v), _mm256_and_si256(negative, sign));
    if constexpr (sizeof(typename T::bits) == 4) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), y);
    } else {
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(y, y), 8);  // halves 0 and 2
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_castsi256_si128(packed));
    }
  }
  rank_fit_get_values<T>(in + l.signs, in + l.codes, i, l.n, l.bits, level, out);
}

template void rank_fit_range_avx2<f32_type>(const f32_type::bits*, uint64_t, f32_type::bits*);
template void rank_fit_encode_avx2<f32_type>(const f32_type::bits*, const rank_fit_layout&, const uint32_t*, uint8_t*);
template void rank_fit_decode_avx2<f32_type>(const uint8_t*, const rank_fit_layout&, const f32_type::bits*,
                                             f32_type::bits*);
template void rank_fit_range_avx2<f16_type>(const f16_type::bits*, uint64_t, f16_type::bits*);
template void rank_fit_encode_avx2<f16_type>(const f16_type::bits*, const rank_fit_layout&, const uint32_t*, uint8_t*);
template void rank_fit_decode_avx2<f16_type>(const uint8_t*, const rank_fit_layout&, const f16_type::bits*,
                                             f16_type::bits*);
template void rank_fit_range_avx2<bf16_type>(const bf16_type::bits*, uint64_t, bf16_type::bits*);
template void rank_fit_encode_avx2<bf16_type>(const bf16_type::bits*, const rank_fit_layout&, const uint32_t*,
                                              uint8_t*);
template void rank_fit_decode_avx2<bf16_type>(const uint8_t*, const rank_fit_layout&, const bf16_type::bits*,
                                              bf16_type::bits*);

}  // namespace dr
DR_ISA_END
#endif
