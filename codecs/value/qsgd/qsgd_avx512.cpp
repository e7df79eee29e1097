// Codes sixteen at a time. See qsgd_avx2.cpp for why quotients and 16-bit values are rounded as scalar rounds them.
#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "primitive/packing_vectors.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

__m512d qsgd_quotient_avx512(__m512d a, __m512d b, __m512d inverse) {
  const __m512d q = _mm512_mul_pd(a, inverse);
  return _mm512_fmadd_pd(_mm512_fnmadd_pd(q, b, a), inverse, q);
}
__m512 qsgd_load_avx512(f32_type, const uint32_t* v, __mmask16 some) { return _mm512_maskz_loadu_ps(some, v); }
__m512 qsgd_load_avx512(f16_type, const uint16_t* v, __mmask16 some) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, v));
}
__m512 qsgd_load_avx512(bf16_type, const uint16_t* v, __mmask16 some) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, v)), 16));
}
__mmask16 qsgd_lanes(size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }
__m512d qsgd_half_avx512(__m512 v, int h) {
  return _mm512_cvtps_pd(h ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v));
}

template <class T>
double qsgd_squares_avx512(const typename T::bits* values, uint64_t n) {
  double total = 0;
  alignas(64) double tile[sum_tile / 2];
  for (uint64_t begin = 0; begin < n; begin += sum_tile) {
    const typename T::bits* const v = values + begin;
    const auto length = static_cast<size_t>(std::min<uint64_t>(sum_tile, n - begin));
    if (length <= 16) {
      total += qsgd_few_squares<T>(v, length);
      continue;
    }
    size_t h = bit_ceil(length) / 2;
    for (size_t i = 0; i < h; i += 16) {
      const __m512 a = qsgd_load_avx512(T{}, v + i, 0xffff);
      const __m512 b = qsgd_load_avx512(T{}, v + i + h, i + h < length ? qsgd_lanes(length - i - h) : 0);
      for (int k = 0; k < 2; ++k) {
        const __m512d x = qsgd_half_avx512(a, k), y = qsgd_half_avx512(b, k);
        _mm512_store_pd(tile + i + 8 * k, _mm512_fmadd_pd(y, y, _mm512_mul_pd(x, x)));  // squares are exact
      }
    }
    for (h /= 2; h >= 8; h /= 2)
      for (size_t i = 0; i < h; i += 8)
        _mm512_store_pd(tile + i, _mm512_add_pd(_mm512_load_pd(tile + i), _mm512_load_pd(tile + i + h)));
    for (size_t i = 0; i < 4; ++i) tile[i] += tile[i + 4];
    total += (tile[0] + tile[2]) + (tile[1] + tile[3]);
  }
  return total;
}

template <class T>
void qsgd_codes_avx512(const typename T::bits* values, size_t n, float norm, uint32_t levels, uint64_t key,
                       uint64_t first, uint32_t* codes) {
  if (!(norm > 0)) {
    std::fill(codes, codes + n, 0);
    return;
  }
  const __m512d most = _mm512_set1_pd(levels), by = _mm512_set1_pd(norm), inverse = _mm512_set1_pd(1.0 / norm);
  const __m512i step = _mm512_set1_epi64(static_cast<long long>(8 * golden));
  __m512i counter = _mm512_add_epi64(
      _mm512_set1_epi64(static_cast<long long>(key + (first + 1) * golden)),
      _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(static_cast<long long>(golden))));
  const __m512i one = _mm512_set1_epi32(1);
  for (size_t i = 0; i < n; i += 16) {
    const __m512 v = qsgd_load_avx512(T{}, values + i, qsgd_lanes(n - i));
    const __m512 magnitude = _mm512_abs_ps(v);
    __m256i whole[2];
    for (int h = 0; h < 2; ++h) {
      const __m512d scaled = qsgd_quotient_avx512(_mm512_mul_pd(qsgd_half_avx512(magnitude, h), most), by, inverse);
      __m512i x = counter;  // mix64 without its last step, which is below the 24 bits
      counter = _mm512_add_epi64(counter, step);
      x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)),
                             _mm512_set1_epi64(static_cast<long long>(0xbf58476d1ce4e5b9)));
      x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)),
                             _mm512_set1_epi64(static_cast<long long>(0x94d049bb133111eb)));
      const __m512d level = _mm512_fmadd_pd(_mm512_cvtepu64_pd(_mm512_srli_epi64(x, 40)), _mm512_set1_pd(0x1p-24),
                                            scaled);  // (the product is exact)
      whole[h] = _mm512_cvttpd_epi32(_mm512_min_pd(level, most));
    }
    const __m512i level = _mm512_inserti64x4(_mm512_castsi256_si512(whole[0]), whole[1], 1);
    const __mmask16 negative = _mm512_mask_test_epi32_mask(_mm512_movepi32_mask(_mm512_castps_si512(v)), level, level);
    const __m512i twice = _mm512_add_epi32(level, level);
    _mm512_storeu_si512(codes + i, _mm512_mask_or_epi32(twice, negative, twice, one));
  }
}

uint32_t qsgd_unpack_avx512(const uint8_t* in, size_t n, unsigned bits, uint32_t* codes) {
  const unpack_16 unpack(bits);
  __m512i most = _mm512_setzero_si512();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i c = unpack(in + i / 8 * bits);
    most = _mm512_max_epu32(most, c);
    _mm512_store_si512(codes + i, c);
  }
  unpack_scalar(in + i / 8 * bits, in + packed_size(n, bits), n - i, bits, codes + i);
  const uint32_t last = i < n ? *std::max_element(codes + i, codes + n) : 0;
  return std::max(last, _mm512_reduce_max_epu32(most));
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
  return qsgd_decode_blocks<T, qsgd_unpack_avx512, qsgd_values_avx512<T>>(in, l, out);
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
