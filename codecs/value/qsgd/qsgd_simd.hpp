// qsgd's payloads at each level of instructions. Draws depend on positions alone and quotients are rounded as a division rounds
// them, so the bytes of all levels are scalar's.
#pragma once

#include <algorithm>

#include "codecs/value/qsgd/qsgd_kernel.hpp"
#include "primitive/cpu.hpp"
#include "primitive/packing.hpp"
#include "primitive/value_vectors.hpp"

namespace dr {

template <class T>
using qsgd_encoder = void (*)(const typename T::bits* values, const qsgd_layout&, uint64_t key, uint8_t* out);

template <class T>
void qsgd_encode_scalar(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  bit_writer codes(out + l.norms_size);
  for (uint64_t b = 0; b < l.buckets; ++b) {
    const uint64_t begin = b * l.bucket, length = b + 1 < l.buckets ? l.bucket : l.n - begin;
    const float norm = qsgd_norm<T>(values + begin, length);
    store(out + 4 * b, norm);
    for (uint64_t i = begin; i < begin + length; ++i)
      codes.put(qsgd_code(T::to_f32(values[i]), norm, l.levels, draw(key, i)), l.code_bits);
  }
  codes.finish();
}

// The first fault of a payload, if it has one.
struct qsgd_verdict {
  const char* what = nullptr;
  uint64_t where = 0, found = 0;
};
template <class T>
using qsgd_decoder = qsgd_verdict (*)(const uint8_t* in, const qsgd_layout&, typename T::bits* out);

template <class T>
qsgd_verdict qsgd_decode_scalar(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  bit_reader codes(in + l.norms_size, l.n * l.code_bits);
  for (uint64_t b = 0; b < l.buckets; ++b) {
    const uint64_t begin = b * l.bucket, length = b + 1 < l.buckets ? l.bucket : l.n - begin;
    const auto norm_bits = load<uint32_t>(in + 4 * b);
    if (norm_bits >= f32_type::infinity) return {"qsgd: a norm is negative or not finite", 4 * b, norm_bits};
    const float norm = std::bit_cast<float>(norm_bits);
    for (uint64_t i = begin; i < begin + length; ++i) {
      const auto code = static_cast<uint32_t>(codes.get(l.code_bits));
      if (code >> 1 > l.levels) return {"qsgd: a level is above the highest", i, code >> 1};
      out[i] = T::from_f64(qsgd_value(code, norm, l.levels));
    }
  }
  if (!padding_is_zero(in + l.norms_size, l.n * l.code_bits)) return {"qsgd: padding is not zero", l.size, 0};
  return {};
}

#if DR_X86
// Codes are made and read a block at a time, which begins on a byte whatever their width is. A bucket may end anywhere in it.
inline constexpr size_t qsgd_block = 2048, qsgd_slack = 16;

//   squares(values, n)   Σ v² as tree_sum has it
//   make(values, n, norm, levels, key, first, codes)   of n values of a bucket, from position `first` of the stream on; with
//                                                      room for qsgd_slack codes behind
template <class T, auto squares, auto make>
void qsgd_encode_blocks(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  alignas(64) uint32_t codes[qsgd_block + qsgd_slack];
  uint8_t *norms = out, *body = out + l.norms_size;
  uint64_t bucket_end = 0;
  float norm = 0;
  for (uint64_t first = 0; first < l.n; first += qsgd_block) {
    const uint64_t end = std::min<uint64_t>(first + qsgd_block, l.n);
    for (uint64_t at = first, to; at < end; at = to) {
      if (at == bucket_end) {
        bucket_end = std::min(at + l.bucket, l.n);
        norm = qsgd_norm_of<T>(squares(values + at, bucket_end - at));
        store(norms, norm);
        norms += 4;
      }
      to = std::min(bucket_end, end);
      make(values + at, to - at, norm, l.levels, key, at, codes + (at - first));
    }
    body = pack_bits.best()(codes, end - first, l.code_bits, body);
  }
}

//   unpack(in, n, bits, codes)   returns the largest code
//   restore(codes, n, norm, levels, out)   of n codes of a bucket
template <class T, auto unpack, auto restore>
qsgd_verdict qsgd_decode_blocks(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  alignas(64) uint32_t codes[qsgd_block];
  const uint8_t *norms = in, *body = in + l.norms_size;
  bool good = padding_is_zero(body, l.n * l.code_bits);
  uint64_t bucket_end = 0;
  uint32_t norm = 0;
  for (uint64_t first = 0; good && first < l.n; first += qsgd_block) {
    const uint64_t end = std::min<uint64_t>(first + qsgd_block, l.n);
    good = unpack(body + first / 8 * l.code_bits, end - first, l.code_bits, codes) >> 1 <= l.levels;
    for (uint64_t at = first, to; good && at < end; at = to) {
      if (at == bucket_end) {
        bucket_end = std::min(at + l.bucket, l.n);
        norm = load<uint32_t>(norms);
        norms += 4;
        good = norm < f32_type::infinity;
      }
      to = std::min(bucket_end, end);
      if (good) restore(codes + (at - first), to - at, std::bit_cast<float>(norm), l.levels, out + at);
    }
  }
  return good ? qsgd_verdict{} : qsgd_decode_scalar<T>(in, l, out);  // which says what comes first
}

template <class T>
double qsgd_few_squares(const typename T::bits* v, size_t n) {
  return tree_sum(n, [&](uint64_t i) { return qsgd_square<T>(v[i]); });
}

DR_AVX2_BEGIN

// Quotients a / b as a division rounds them, a < 2^39 and b < 2^24 but for powers of two (a: levels · |v| or norm · level; b: norm
// or levels), y = 1 / b rounded: q = a y is within 1.5 ulp of a / b, a − q b is exact, and q + (a − q b) y differs from a / b by
// less than 2^-52 ulp before it is rounded. It is rounded alike because nothing that near a / b is a midpoint: a midpoint is
// k 2^s with k < 2^54 odd, |a − k 2^s b| is 0 only if k divides a (it has too many bits), and else it is at least 2^s, so a midpoint
// is 2^-25 ulp away or more.
inline __m256d qsgd_quotient_avx2(__m256d a, __m256d b, __m256d inverse) {
  const __m256d q = _mm256_mul_pd(a, inverse);
  return _mm256_fmadd_pd(_mm256_fnmadd_pd(q, b, a), inverse, q);
}
inline __m256d qsgd_half_avx2(__m256 v, int h) {
  return _mm256_cvtps_pd(h ? _mm256_extractf128_ps(v, 1) : _mm256_castps256_ps128(v));
}

template <class T>
double qsgd_squares_avx2(const typename T::bits* values, uint64_t n) {
  double total = 0;
  alignas(32) double tile[sum_tile / 2];
  for (uint64_t begin = 0; begin < n; begin += sum_tile) {
    const typename T::bits* const v = values + begin;
    const auto length = static_cast<size_t>(std::min<uint64_t>(sum_tile, n - begin));
    if (length < 16) {
      total += qsgd_few_squares<T>(v, length);
      continue;
    }
    size_t h = bit_ceil(length) / 2;
    for (size_t i = 0; i < h; i += 8) {
      const __m256 a = load_8<T>(v + i);
      __m256 b = _mm256_setzero_ps();
      if (i + h + 8 <= length) {
        b = load_8<T>(v + i + h);
      } else if (i + h < length) {
        typename T::bits last[8] = {};
        std::copy(v + i + h, v + length, last);
        b = load_8<T>(last);
      }
      for (int k = 0; k < 2; ++k) {
        const __m256d x = qsgd_half_avx2(a, k), y = qsgd_half_avx2(b, k);
        _mm256_store_pd(tile + i + 4 * k, _mm256_fmadd_pd(y, y, _mm256_mul_pd(x, x)));  // squares are exact
      }
    }
    for (h /= 2; h >= 4; h /= 2)
      for (size_t i = 0; i < h; i += 4)
        _mm256_store_pd(tile + i, _mm256_add_pd(_mm256_load_pd(tile + i), _mm256_load_pd(tile + i + h)));
    total += (tile[0] + tile[2]) + (tile[1] + tile[3]);
  }
  return total;
}

inline __m256i qsgd_multiply_avx2(__m256i a, uint64_t by) {
  const __m256i low = _mm256_set1_epi64x(static_cast<long long>(by)), high = _mm256_srli_epi64(low, 32);
  const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), low), _mm256_mul_epu32(a, high));
  return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
}

template <class T>
void qsgd_codes_avx2(const typename T::bits* values, size_t n, float norm, uint32_t levels, uint64_t key,
                     uint64_t first, uint32_t* codes) {
  if (!(norm > 0)) {
    std::fill(codes, codes + n, 0);
    return;
  }
  const __m256d most = _mm256_set1_pd(levels), by = _mm256_set1_pd(norm), inverse = _mm256_set1_pd(1.0 / norm);
  const __m256i step = _mm256_set1_epi64x(static_cast<long long>(4 * golden));
  const uint64_t begin = key + (first + 1) * golden;
  __m256i counter =
      _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(begin)),
                       _mm256_set_epi64x(static_cast<long long>(3 * golden), static_cast<long long>(2 * golden),
                                         static_cast<long long>(golden), 0));
  for (size_t i = 0; i < n; i += 8) {
    typename T::bits last[8] = {};
    const typename T::bits* from = values + i;
    if (n - i < 8) from = std::copy(from, values + n, last) - (n - i);
    const __m256 v = load_8<T>(from);
    const __m256 magnitude = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
    __m128i whole[2];
    for (int h = 0; h < 2; ++h) {
      const __m256d scaled = qsgd_quotient_avx2(_mm256_mul_pd(qsgd_half_avx2(magnitude, h), most), by, inverse);
      __m256i x = counter;  // mix64 without its last step, which is below the 24 bits
      counter = _mm256_add_epi64(counter, step);
      x = qsgd_multiply_avx2(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), 0xbf58476d1ce4e5b9);
      x = qsgd_multiply_avx2(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), 0x94d049bb133111eb);
      const __m256i exponent = _mm256_set1_epi64x(0x4330000000000000);  // of 2^52, whose last place is 1
      const __m256d drawn = _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(_mm256_srli_epi64(x, 40), exponent)),
                                          _mm256_castsi256_pd(exponent));
      const __m256d level = _mm256_fmadd_pd(drawn, _mm256_set1_pd(0x1p-24), scaled);  // (the product is exact)
      whole[h] = _mm256_cvttpd_epi32(_mm256_min_pd(level, most));
    }
    const __m256i level = _mm256_set_m128i(whole[1], whole[0]);
    const __m256i sign = _mm256_andnot_si256(_mm256_cmpeq_epi32(level, _mm256_setzero_si256()),
                                             _mm256_srli_epi32(_mm256_castps_si256(v), 31));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm256_or_si256(_mm256_add_epi32(level, level), sign));
  }
}

inline uint32_t qsgd_unpack_avx2(const uint8_t* in, size_t n, unsigned bits, uint32_t* codes) {
  const unpack_8 unpack(bits);
  const size_t size = packed_size(n, bits);
  __m256i most = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 8 <= n && i / 8 * bits + unpack_8::reach(bits) <= size; i += 8) {
    const __m256i c = unpack(in + i / 8 * bits);
    most = _mm256_max_epu32(most, c);
    _mm256_store_si256(reinterpret_cast<__m256i*>(codes + i), c);
  }
  unpack_scalar(in + i / 8 * bits, in + size, n - i, bits, codes + i);
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
  const uint32_t last = i < n ? *std::max_element(codes + i, codes + n) : 0;
  return std::max(last, *std::max_element(lanes, lanes + 8));
}

// Eight magnitudes, each rounded once. To 16 bits by way of f32, rounded so that its last bit says whether there is more: to that
// of the two beside it which is odd (Boldo, Melquiond 2008), for which f32's 24 bits are more than the 2 beyond 11 that it takes.
inline __m256i qsgd_narrow_avx2(f32_type, __m256d low, __m256d high) {
  return _mm256_castps_si256(_mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low)));
}
inline __m128i qsgd_upper_words_avx2(__m256d v) {
  const __m256i places = _mm256_set_epi32(7, 5, 3, 1, 7, 5, 3, 1);
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(v), places));
}
inline __m128i qsgd_odd_avx2(__m256d v) {
  const __m128 near = _mm256_cvtpd_ps(v);
  const __m256d back = _mm256_cvtps_pd(near);
  const __m128i above = qsgd_upper_words_avx2(_mm256_cmp_pd(back, v, _CMP_GT_OQ)),
                other = qsgd_upper_words_avx2(_mm256_cmp_pd(back, v, _CMP_NEQ_OQ));
  return _mm_or_si128(_mm_add_epi32(_mm_castps_si128(near), above), _mm_srli_epi32(other, 31));
}
inline __m256i qsgd_odd_avx2(__m256d low, __m256d high) {
  return _mm256_set_m128i(qsgd_odd_avx2(high), qsgd_odd_avx2(low));
}
inline __m256i qsgd_narrow_avx2(f16_type, __m256d low, __m256d high) {
  return _mm256_cvtepu16_epi32(
      _mm256_cvtps_ph(_mm256_castsi256_ps(qsgd_odd_avx2(low, high)), _MM_FROUND_TO_NEAREST_INT));
}
inline __m256i qsgd_narrow_avx2(bf16_type, __m256d low, __m256d high) {
  const __m256i v = qsgd_odd_avx2(low, high), even = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(v, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
}
inline void qsgd_store_avx2(uint32_t* out, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v); }
inline void qsgd_store_avx2(uint16_t* out, __m256i v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(words));
}

inline __m256d qsgd_value_avx2(__m128i level, __m256d norm, __m256d levels, __m256d inverse) {
  return qsgd_quotient_avx2(_mm256_mul_pd(_mm256_cvtepi32_pd(level), norm), levels, inverse);
}

template <class T>
void qsgd_values_avx2(const uint32_t* codes, size_t n, float norm, uint32_t levels, typename T::bits* out) {
  const __m256d by = _mm256_set1_pd(levels), inverse = _mm256_set1_pd(1.0 / levels), scale = _mm256_set1_pd(norm);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)),
                  level = _mm256_srli_epi32(code, 1);
    const __m256i v = qsgd_narrow_avx2(T{}, qsgd_value_avx2(_mm256_castsi256_si128(level), scale, by, inverse),
                                       qsgd_value_avx2(_mm256_extracti128_si256(level, 1), scale, by, inverse));
    const __m256i sign = _mm256_slli_epi32(code, 31);
    qsgd_store_avx2(out + i, _mm256_or_si256(v, sizeof(typename T::bits) == 4 ? sign : _mm256_srli_epi32(sign, 16)));
  }
  for (; i < n; ++i) out[i] = T::from_f64(qsgd_value(codes[i], norm, levels));
}

DR_ISA_END

DR_AVX512_BEGIN

inline __m512d qsgd_quotient_avx512(__m512d a, __m512d b, __m512d inverse) {
  const __m512d q = _mm512_mul_pd(a, inverse);
  return _mm512_fmadd_pd(_mm512_fnmadd_pd(q, b, a), inverse, q);
}
inline __m512 qsgd_load_avx512(f32_type, const uint32_t* v, __mmask16 some) { return _mm512_maskz_loadu_ps(some, v); }
inline __m512 qsgd_load_avx512(f16_type, const uint16_t* v, __mmask16 some) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, v));
}
inline __m512 qsgd_load_avx512(bf16_type, const uint16_t* v, __mmask16 some) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, v)), 16));
}
inline __mmask16 qsgd_lanes(size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }
inline __m512d qsgd_half_avx512(__m512 v, int h) {
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

inline uint32_t qsgd_unpack_avx512(const uint8_t* in, size_t n, unsigned bits, uint32_t* codes) {
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

inline __m512i qsgd_narrow_avx512(f32_type, __m512d low, __m512d high) {  // as the eight above
  return _mm512_castps_si512(
      _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1));
}
inline __m256i qsgd_odd_avx512(__m512d v) {
  const __m256 down = _mm512_cvt_roundpd_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 other = _mm512_cmp_pd_mask(_mm512_cvtps_pd(down), v, _CMP_NEQ_OQ);
  const __m256i bits = _mm256_castps_si256(down);
  return _mm256_mask_or_epi32(bits, other, bits, _mm256_set1_epi32(1));
}
inline __m512i qsgd_odd_avx512(__m512d low, __m512d high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(qsgd_odd_avx512(low)), qsgd_odd_avx512(high), 1);
}
inline __m512i qsgd_narrow_avx512(f16_type, __m512d low, __m512d high) {
  return _mm512_cvtepu16_epi32(
      _mm512_cvtps_ph(_mm512_castsi512_ps(qsgd_odd_avx512(low, high)), _MM_FROUND_TO_NEAREST_INT));
}
inline __m512i qsgd_narrow_avx512(bf16_type, __m512d low, __m512d high) {
  const __m512i v = qsgd_odd_avx512(low, high), even = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(v, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), 16);
}
inline void qsgd_store_avx512(uint32_t* out, __mmask16 some, __m512i v) { _mm512_mask_storeu_epi32(out, some, v); }
inline void qsgd_store_avx512(uint16_t* out, __mmask16 some, __m512i v) {
  _mm256_mask_storeu_epi16(out, some, _mm512_cvtepi32_epi16(v));
}

inline __m512d qsgd_value_avx512(__m256i level, __m512d norm, __m512d levels, __m512d inverse) {
  return qsgd_quotient_avx512(_mm512_mul_pd(_mm512_cvtepi32_pd(level), norm), levels, inverse);
}

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

DR_ISA_END
#endif

template <class T>
inline constexpr cpu_table<qsgd_encoder<T>> qsgd_encode_at = {
    qsgd_encode_scalar<T>,
#if DR_X86
    qsgd_encode_blocks<T, qsgd_squares_avx2<T>, qsgd_codes_avx2<T>>,
    qsgd_encode_blocks<T, qsgd_squares_avx512<T>, qsgd_codes_avx512<T>>
#endif
};
template <class T>
inline constexpr cpu_table<qsgd_decoder<T>> qsgd_decode_at = {
    qsgd_decode_scalar<T>,
#if DR_X86
    qsgd_decode_blocks<T, qsgd_unpack_avx2, qsgd_values_avx2<T>>,
    qsgd_decode_blocks<T, qsgd_unpack_avx512, qsgd_values_avx512<T>>
#endif
};

}  // namespace dr
