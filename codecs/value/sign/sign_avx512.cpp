// Signs as masks: a comparison is the bits of 16 or 32 values, and bits are the mask of a choice.
#include "codecs/value/sign/sign_kernel.hpp"
#include "primitive/sum_tree_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

// 32 values; all after the first `some` are 0.
uint32_t sign_ones_avx512(const uint32_t* v, __mmask32 some) {
  const __m512i limit = _mm512_set1_epi32(INT32_MIN);
  const auto low = static_cast<__mmask16>(some), high = static_cast<__mmask16>(some >> 16);
  return _mm512_cmpgt_epu32_mask(_mm512_maskz_loadu_epi32(low, v), limit) |
         static_cast<uint32_t>(_mm512_cmpgt_epu32_mask(_mm512_maskz_loadu_epi32(high, v + 16), limit)) << 16;
}
uint32_t sign_ones_avx512(const uint16_t* v, __mmask32 some) {
  return _mm512_cmpgt_epu16_mask(_mm512_maskz_loadu_epi16(some, v), _mm512_set1_epi16(INT16_MIN));
}

void sign_choose_avx512(uint32_t bits, __mmask32 some, uint32_t below, uint32_t other, uint32_t* out) {
  const __m512i ones = _mm512_set1_epi32(static_cast<int>(below)), zeros = _mm512_set1_epi32(static_cast<int>(other));
  _mm512_mask_storeu_epi32(out, static_cast<__mmask16>(some),
                           _mm512_mask_blend_epi32(static_cast<__mmask16>(bits), zeros, ones));
  _mm512_mask_storeu_epi32(out + 16, static_cast<__mmask16>(some >> 16),
                           _mm512_mask_blend_epi32(static_cast<__mmask16>(bits >> 16), zeros, ones));
}
void sign_choose_avx512(uint32_t bits, __mmask32 some, uint16_t below, uint16_t other, uint16_t* out) {
  const __m512i ones = _mm512_set1_epi16(static_cast<short>(below)),
                zeros = _mm512_set1_epi16(static_cast<short>(other));
  _mm512_mask_storeu_epi16(out, some, _mm512_mask_blend_epi16(bits, zeros, ones));
}

// Both sums at once. That of the values below zero is negated at the end: rounding does not mind the sign.
struct sign_two_avx512 {
  __m512d below, other;
};
sign_two_avx512 tree_add(const sign_two_avx512& a, const sign_two_avx512& b) {
  return {_mm512_add_pd(a.below, b.below), _mm512_add_pd(a.other, b.other)};
}
struct sign_parts_avx512 {
  sign_two_avx512 operator()(__m512d v) const {
    return {_mm512_min_pd(v, _mm512_setzero_pd()), _mm512_max_pd(v, _mm512_setzero_pd())};
  }
};

}  // namespace

template <class T>
void sign_pack_avx512(const typename T::bits* values, uint64_t n, uint8_t* out) {
  constexpr __mmask32 all = ~__mmask32{0};
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) store(out + i / 8, sign_ones_avx512(values + i, all));
  if (i < n)
    store_bytes(out + i / 8,
                sign_ones_avx512(values + i, static_cast<__mmask32>(low_mask(static_cast<unsigned>(n - i)))),
                static_cast<unsigned>(ceil_div(n - i, 8)));
}

template <class T>
void sign_unpack_avx512(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                        typename T::bits* out) {
  constexpr __mmask32 all = ~__mmask32{0};
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) sign_choose_avx512(load<uint32_t>(bits + i / 8), all, below, other, out + i);
  if (i < n)
    sign_choose_avx512(static_cast<uint32_t>(load_bytes(bits + i / 8, static_cast<unsigned>(ceil_div(n - i, 8)))),
                       static_cast<__mmask32>(low_mask(static_cast<unsigned>(n - i))), below, other, out + i);
}

template <class T>
sign_sums sign_sums_avx512(const typename T::bits* values, uint64_t n) {
  sign_sums sums{0, 0};
  for (; n >= sum_tile; n -= sum_tile, values += sum_tile) {
    const sign_two_avx512 tile = tree_tile_avx512<T>(values, sign_parts_avx512{});
    sums.below += -tree_lanes_sum(tile.below);
    sums.other += tree_lanes_sum(tile.other);
  }
  if (n) {
    const sign_sums last = sign_sums_scalar<T>(values, n);
    sums.below += last.below;
    sums.other += last.other;
  }
  return sums;
}

template void sign_pack_avx512<f32_type>(const f32_type::bits*, uint64_t, uint8_t*);
template void sign_pack_avx512<f16_type>(const f16_type::bits*, uint64_t, uint8_t*);
template void sign_pack_avx512<bf16_type>(const bf16_type::bits*, uint64_t, uint8_t*);
template void sign_unpack_avx512<f32_type>(const uint8_t*, uint64_t, uint32_t, uint32_t, uint32_t*);
template void sign_unpack_avx512<f16_type>(const uint8_t*, uint64_t, uint16_t, uint16_t, uint16_t*);
template void sign_unpack_avx512<bf16_type>(const uint8_t*, uint64_t, uint16_t, uint16_t, uint16_t*);
template sign_sums sign_sums_avx512<f32_type>(const f32_type::bits*, uint64_t);
template sign_sums sign_sums_avx512<f16_type>(const f16_type::bits*, uint64_t);
template sign_sums sign_sums_avx512<bf16_type>(const bf16_type::bits*, uint64_t);

}  // namespace dr
DR_ISA_END
#endif
