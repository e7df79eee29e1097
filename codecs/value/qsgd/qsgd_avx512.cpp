// Codes sixteen at a time. See qsgd_avx2.cpp for why quotients and 16-bit values are rounded as scalar rounds them.
#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "primitive/packing_vectors.hpp"
#include "primitive/rng_vectors.hpp"
#include "primitive/sum_tree_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

__m512d qsgd_quotient_avx512(__m512d a, __m512d b, __m512d inverse) {
  const __m512d q = _mm512_mul_pd(a, inverse);
  return _mm512_fmadd_pd(_mm512_fnmadd_pd(q, b, a), inverse, q);
}
__mmask16 qsgd_lanes(size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }
__m512d qsgd_half_avx512(__m512 v, int h) {
  return _mm512_cvtps_pd(h ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v));
}

struct qsgd_square_avx512 {  // squares are exact, so sums of two are rounded once, fused or not
  __m512d operator()(__m512d v) const { return _mm512_mul_pd(v, v); }
};

template <class T>
double qsgd_squares_avx512(const typename T::bits* values, uint64_t n) {
  double total = 0;
  alignas(64) double tile[sum_tile / 2];
  for (uint64_t begin = 0; begin < n; begin += sum_tile) {
    const typename T::bits* const v = values + begin;
    const auto length = static_cast<size_t>(std::min<uint64_t>(sum_tile, n - begin));
    if (length == sum_tile || length == sum_tile / 2) {
      total += tree_lanes_sum(length == sum_tile ? tree_tile_avx512<T, sum_tile>(v, qsgd_square_avx512{})
                                                 : tree_tile_avx512<T, sum_tile / 2>(v, qsgd_square_avx512{}));
      continue;
    }
    if (length <= 16) {
      total += qsgd_few_squares<T>(v, length);
      continue;
    }
    size_t h = bit_ceil(length) / 2;
    for (size_t i = 0; i < h; i += 16) {
      const __m512 a = load_16<T>(v + i);
      const __m512 b = load_16<T>(v + i + h, i + h < length ? qsgd_lanes(length - i - h) : 0);
      for (int k = 0; k < 2; ++k) {
        const __m512d x = qsgd_half_avx512(a, k), y = qsgd_half_avx512(b, k);
        _mm512_store_pd(tile + i + 8 * k, _mm512_fmadd_pd(y, y, _mm512_mul_pd(x, x)));  // squares are exact
      }
    }
    for (h /= 2; h >= 8; h /= 2)
      for (size_t i = 0; i < h; i += 8)
        _mm512_store_pd(tile + i, _mm512_add_pd(_mm512_load_pd(tile + i), _mm512_load_pd(tile + i + h)));
    total += tree_lanes_sum(_mm512_load_pd(tile));
  }
  return total;
}

// Levels of 16 magnitudes, as scalar has them. low, high: of their draws the upper bits.
__m512i qsgd_levels_avx512(__m512 magnitude, __m512i low, __m512i high, __m512d norm, __m512d inverse,
                           __m512d largest) {
  __m256i whole[2];
  for (int h = 0; h < 2; ++h) {
    const __m512d scaled = qsgd_quotient_avx512(_mm512_mul_pd(qsgd_half_avx512(magnitude, h), largest), norm, inverse);
    const __m512d level = _mm512_fmadd_pd(_mm512_cvtepu64_pd(_mm512_srli_epi64(h ? high : low, 40)),
                                          _mm512_set1_pd(0x1p-24), scaled);  // (the product is exact)
    whole[h] = _mm512_cvttpd_epi32(_mm512_min_pd(level, largest));
  }
  return _mm512_inserti64x4(_mm512_castsi256_si512(whole[0]), whole[1], 1);
}

// In f32, |v| · (levels / norm) + u is within 4 (levels + 1) 2^-24 of the number that is rounded down. Where it is
// nearer than twice that to an integer, rarely, all 16 are levels as above.
constexpr uint32_t qsgd_few_levels = 1023;
constexpr float qsgd_most_norm = 0x1p100f;

template <class T>
void qsgd_codes_avx512(const typename T::bits* values, size_t n, float norm, uint32_t levels, uint64_t key,
                       uint64_t first, uint32_t* codes) {
  if (!(norm > 0)) {
    std::fill(codes, codes + n, 0);
    return;
  }
  const __m512d largest = _mm512_set1_pd(levels), by = _mm512_set1_pd(norm), inverse = _mm512_set1_pd(1.0 / norm);
  const auto top = static_cast<float>(levels);
  const __m512 scale = _mm512_set1_ps(top / norm), highest = _mm512_set1_ps(top), unit = _mm512_set1_ps(0x1p-24f),
               near = _mm512_set1_ps((top + 1) * 0x1p-21f);
  const bool guesses =
      levels <= qsgd_few_levels && norm >= std::bit_cast<float>(qsgd_least_norm) && norm <= qsgd_most_norm;
  draws_8 draws(key, first);
  const __m512i one = _mm512_set1_epi32(1);
  for (size_t i = 0; i < n; i += 16) {
    const __m512 v = load_16<T>(values + i, qsgd_lanes(n - i)), magnitude = _mm512_abs_ps(v);
    const __m512i low = draws.next_upper(), high = draws.next_upper();
    const __m512 guess =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(drawn_16(low, high)), unit, _mm512_mul_ps(magnitude, scale));
    const __m512 off = _mm512_sub_ps(guess, _mm512_roundscale_ps(guess, _MM_FROUND_TO_NEAREST_INT));
    __m512i level = _mm512_cvttps_epi32(_mm512_min_ps(guess, highest));
    if (!guesses || _mm512_cmp_ps_mask(_mm512_abs_ps(off), near, _CMP_LT_OQ)) [[unlikely]]
      level = qsgd_levels_avx512(magnitude, low, high, by, inverse, largest);
    const __mmask16 negative = _mm512_mask_test_epi32_mask(_mm512_movepi32_mask(_mm512_castps_si512(v)), level, level);
    const __m512i twice = _mm512_add_epi32(level, level);
    _mm512_storeu_si512(codes + i, _mm512_mask_or_epi32(twice, negative, twice, one));
  }
}

uint32_t qsgd_unpack_avx512(const uint8_t* in, size_t n, unsigned bits, uint32_t* codes) {
  const unpack_16 unpack(bits);
  __m512i largest = _mm512_setzero_si512();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i c = unpack(in + i / 8 * bits);
    largest = _mm512_max_epu32(largest, c);
    _mm512_store_si512(codes + i, c);
  }
  unpack_scalar(in + i / 8 * bits, in + packed_size(n, bits), n - i, bits, codes + i);
  const uint32_t last = i < n ? *std::max_element(codes + i, codes + n) : 0;
  return std::max(last, _mm512_reduce_max_epu32(largest));
}

__m512i qsgd_narrow_avx512(f32_type, __m512d low, __m512d high) {  // as the eight above
  return _mm512_castps_si512(
      _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1));
}
__m256i qsgd_odd_avx512(__m512d v) {
  const __m256 down = _mm512_cvt_roundpd_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 other = _mm512_cmp_pd_mask(_mm512_cvtps_pd(down), v, _CMP_NEQ_OQ);
  const __m256i bits = _mm256_castps_si256(down);
  return _mm256_mask_or_epi32(bits, other, bits, _mm256_set1_epi32(1));
}
__m512i qsgd_odd_avx512(__m512d low, __m512d high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(qsgd_odd_avx512(low)), qsgd_odd_avx512(high), 1);
}
__m512i qsgd_narrow_avx512(f16_type, __m512d low, __m512d high) {
  return _mm512_cvtepu16_epi32(
      _mm512_cvtps_ph(_mm512_castsi512_ps(qsgd_odd_avx512(low, high)), _MM_FROUND_TO_NEAREST_INT));
}
__m512i qsgd_narrow_avx512(bf16_type, __m512d low, __m512d high) {
  const __m512i v = qsgd_odd_avx512(low, high), even = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(v, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), 16);
}
void qsgd_store_avx512(uint32_t* out, __mmask16 some, __m512i v) { _mm512_mask_storeu_epi32(out, some, v); }
void qsgd_store_avx512(uint16_t* out, __mmask16 some, __m512i v) {
  _mm256_mask_storeu_epi16(out, some, _mm512_cvtepi32_epi16(v));
}

__m512d qsgd_value_avx512(__m256i level, __m512d norm, __m512d levels, __m512d inverse) {
  return qsgd_quotient_avx512(_mm512_mul_pd(_mm512_cvtepi32_pd(level), norm), levels, inverse);
}

struct qsgd_bytes_16 {
  __m512 high, low;

  __m512i operator()(__m128i bytes) const {
    const __m512i code = _mm512_cvtepu8_epi32(bytes);
    const __m512 level = _mm512_cvtepi32_ps(_mm512_srli_epi32(code, 1));
    const __m512 v = _mm512_fmadd_ps(level, high, _mm512_mul_ps(level, low));
    return _mm512_or_si512(_mm512_castps_si512(v), _mm512_slli_epi32(code, 31));
  }
};
// Whole vectors go to multiples of 64 bytes: stores that cross lines take twice as long.
uint32_t qsgd_bytes_avx512(const uint8_t* in, size_t n, qsgd_step step, uint32_t* out) {
  const qsgd_bytes_16 restore{_mm512_set1_ps(step.high), _mm512_set1_ps(step.low)};
  __m128i largest = _mm_setzero_si128();
  size_t i = 0;
  const auto some = [&](size_t count) {
    const __m128i bytes = _mm_maskz_loadu_epi8(qsgd_lanes(count), in + i);
    largest = _mm_max_epu8(largest, bytes);
    _mm512_mask_storeu_epi32(out + i, qsgd_lanes(count), restore(bytes));
    i += count;
  };
  if (const size_t lead = -reinterpret_cast<uintptr_t>(out) % 64 / sizeof *out) some(std::min(n, lead));
  for (; i + 16 <= n; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    largest = _mm_max_epu8(largest, bytes);
    _mm512_store_si512(out + i, restore(bytes));
  }
  if (i < n) some(n - i);
  alignas(16) uint8_t lanes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), largest);
  return *std::max_element(lanes, lanes + 16);
}

}  // namespace

template <class T>
void qsgd_values_avx512(const uint32_t* codes, size_t n, float norm, uint32_t levels, typename T::bits* out) {
  const __m512d by = _mm512_set1_pd(levels), inverse = _mm512_set1_pd(1.0 / levels), scale = _mm512_set1_pd(norm);
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 some = qsgd_lanes(n - i);
    const __m512i code = _mm512_maskz_loadu_epi32(some, codes + i), level = _mm512_srli_epi32(code, 1);
    const __m512i v = qsgd_narrow_avx512(T{}, qsgd_value_avx512(_mm512_castsi512_si256(level), scale, by, inverse),
                                         qsgd_value_avx512(_mm512_extracti64x4_epi64(level, 1), scale, by, inverse));
    const __m512i sign = _mm512_slli_epi32(code, 31);
    qsgd_store_avx512(out + i, some,
                      _mm512_or_si512(v, sizeof(typename T::bits) == 4 ? sign : _mm512_srli_epi32(sign, 16)));
  }
}

// (Here, between the target pragmas: gcc would instantiate templates used below without these instructions.)
template void qsgd_values_avx512<f32_type>(const uint32_t*, size_t, float, uint32_t, f32_type::bits*);
template void qsgd_values_avx512<f16_type>(const uint32_t*, size_t, float, uint32_t, f16_type::bits*);
template void qsgd_values_avx512<bf16_type>(const uint32_t*, size_t, float, uint32_t, bf16_type::bits*);

template <class T>
void qsgd_encode_avx512(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  qsgd_encode_blocks<T, qsgd_squares_avx512<T>, qsgd_codes_avx512<T>>(values, l, key, out);
}
template <class T>
qsgd_verdict qsgd_decode_avx512(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  return qsgd_decode_blocks<T, qsgd_unpack_avx512, qsgd_values_avx512<T>, qsgd_bytes_avx512>(in, l, out);
}

template void qsgd_encode_avx512<f32_type>(const f32_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_avx512<f32_type>(const uint8_t*, const qsgd_layout&, f32_type::bits*);
template void qsgd_encode_avx512<f16_type>(const f16_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_avx512<f16_type>(const uint8_t*, const qsgd_layout&, f16_type::bits*);
template void qsgd_encode_avx512<bf16_type>(const bf16_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_avx512<bf16_type>(const uint8_t*, const qsgd_layout&, bf16_type::bits*);

}  // namespace dr
DR_ISA_END
#endif
