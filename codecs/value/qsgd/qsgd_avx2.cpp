// Codes eight at a time.
#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "primitive/packing_vectors.hpp"
#include "primitive/rng_vectors.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

// Quotients a / b as a division rounds them, a < 2^39 and b < 2^24 but for powers of two (a: levels · |v| or norm ·
// level; b: norm or levels), y = 1 / b rounded: q = a y is within 1.5 ulp of a / b, a − q b is exact, and q + (a − q b)
// y differs from a / b by less than 2^-52 ulp before it is rounded. It is rounded alike because nothing that near a / b
// is a midpoint: a midpoint is k 2^s with k < 2^54 odd, |a − k 2^s b| is 0 only if k divides a (it has too many bits),
// and else it is at least 2^s, so a midpoint is 2^-25 ulp away or more.
__m256d qsgd_quotient_avx2(__m256d a, __m256d b, __m256d inverse) {
  const __m256d q = _mm256_mul_pd(a, inverse);
  return _mm256_fmadd_pd(_mm256_fnmadd_pd(q, b, a), inverse, q);
}
__m256d qsgd_half_avx2(__m256 v, int h) {
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

template <class T>
void qsgd_codes_avx2(const typename T::bits* values, size_t n, float norm, uint32_t levels, uint64_t key,
                     uint64_t first, uint32_t* codes) {
  if (!(norm > 0)) {
    std::fill(codes, codes + n, 0);
    return;
  }
  const __m256d largest = _mm256_set1_pd(levels), by = _mm256_set1_pd(norm), inverse = _mm256_set1_pd(1.0 / norm);
  draws_4 draw(key, first);
  // Random numbers of a few values, then their codes: in one loop the way to a code would be longer than schedulers
  // see.
  constexpr size_t few = 256;
  alignas(32) uint64_t draws[few];
  const auto draw_few = [&](size_t count) {
    for (size_t i = 0; i < count; i += 4)
      _mm256_store_si256(reinterpret_cast<__m256i*>(draws + i), _mm256_srli_epi64(draw.next_upper(), 40));
  };
  for (size_t i = 0; i < n; i += 8) {
    if (i % few == 0) draw_few(n - i < few ? (n - i + 7) / 8 * 8 : few);
    typename T::bits last[8] = {};
    const typename T::bits* from = values + i;
    if (n - i < 8) from = std::copy(from, values + n, last) - (n - i);
    const __m256 v = load_8<T>(from);
    const __m256 magnitude = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
    __m128i whole[2];
    for (int h = 0; h < 2; ++h) {
      const __m256d scaled = qsgd_quotient_avx2(_mm256_mul_pd(qsgd_half_avx2(magnitude, h), largest), by, inverse);
      const __m256i drawn_bits =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(draws + i % few + 4 * static_cast<size_t>(h)));
      const __m256i exponent = _mm256_set1_epi64x(0x4330000000000000);  // of 2^52, whose last place is 1
      const __m256d drawn =
          _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(drawn_bits, exponent)), _mm256_castsi256_pd(exponent));
      const __m256d level = _mm256_fmadd_pd(drawn, _mm256_set1_pd(0x1p-24), scaled);  // (the product is exact)
      whole[h] = _mm256_cvttpd_epi32(_mm256_min_pd(level, largest));
    }
    const __m256i level = _mm256_set_m128i(whole[1], whole[0]);
    const __m256i sign = _mm256_andnot_si256(_mm256_cmpeq_epi32(level, _mm256_setzero_si256()),
                                             _mm256_srli_epi32(_mm256_castps_si256(v), 31));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm256_or_si256(_mm256_add_epi32(level, level), sign));
  }
}

uint32_t qsgd_unpack_avx2(const uint8_t* in, size_t n, unsigned bits, uint32_t* codes) {
  const unpack_8 unpack(bits);
  const size_t size = packed_size(n, bits);
  __m256i largest = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 8 <= n && i / 8 * bits + unpack_8::reach(bits) <= size; i += 8) {
    const __m256i c = unpack(in + i / 8 * bits);
    largest = _mm256_max_epu32(largest, c);
    _mm256_store_si256(reinterpret_cast<__m256i*>(codes + i), c);
  }
  unpack_scalar(in + i / 8 * bits, in + size, n - i, bits, codes + i);
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  const uint32_t last = i < n ? *std::max_element(codes + i, codes + n) : 0;
  return std::max(last, *std::max_element(lanes, lanes + 8));
}

// Eight magnitudes, rounded once. To 16 bits by way of f32, rounded so that its last bit says whether there is
// more: to that of the two beside it which is odd (Boldo, Melquiond 2008), for which f32's 24 bits are more than the 2
// beyond 11 that it takes.
__m256i qsgd_narrow_avx2(f32_type, __m256d low, __m256d high) {
  return _mm256_castps_si256(_mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low)));
}
__m128i qsgd_upper_words_avx2(__m256d v) {
  const __m256i places = _mm256_set_epi32(7, 5, 3, 1, 7, 5, 3, 1);
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(v), places));
}
__m128i qsgd_odd_avx2(__m256d v) {
  const __m128 near = _mm256_cvtpd_ps(v);
  const __m256d back = _mm256_cvtps_pd(near);
  const __m128i above = qsgd_upper_words_avx2(_mm256_cmp_pd(back, v, _CMP_GT_OQ)),
                other = qsgd_upper_words_avx2(_mm256_cmp_pd(back, v, _CMP_NEQ_OQ));
  return _mm_or_si128(_mm_add_epi32(_mm_castps_si128(near), above), _mm_srli_epi32(other, 31));
}
__m256i qsgd_odd_avx2(__m256d low, __m256d high) { return _mm256_set_m128i(qsgd_odd_avx2(high), qsgd_odd_avx2(low)); }
__m256i qsgd_narrow_avx2(f16_type, __m256d low, __m256d high) {
  return _mm256_cvtepu16_epi32(
      _mm256_cvtps_ph(_mm256_castsi256_ps(qsgd_odd_avx2(low, high)), _MM_FROUND_TO_NEAREST_INT));
}
__m256i qsgd_narrow_avx2(bf16_type, __m256d low, __m256d high) {
  const __m256i v = qsgd_odd_avx2(low, high), even = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(v, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
}
void qsgd_store_avx2(uint32_t* out, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), v); }
void qsgd_store_avx2(uint16_t* out, __m256i v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(words));
}

__m256d qsgd_value_avx2(__m128i level, __m256d norm, __m256d levels, __m256d inverse) {
  return qsgd_quotient_avx2(_mm256_mul_pd(_mm256_cvtepi32_pd(level), norm), levels, inverse);
}

uint32_t qsgd_bytes_avx2(const uint8_t* in, size_t n, qsgd_step step, uint32_t* out) {
  const __m256 high = _mm256_set1_ps(step.high), low = _mm256_set1_ps(step.low);
  __m128i largest = _mm_setzero_si128();
  for (size_t i = 0; i < n; i += 8) {
    const size_t some = std::min<size_t>(n - i, 8);
    const __m128i bytes = _mm_cvtsi64_si128(
        static_cast<long long>(some == 8 ? load<uint64_t>(in + i) : load_bytes(in + i, static_cast<unsigned>(some))));
    largest = _mm_max_epu8(largest, bytes);
    const __m256i code = _mm256_cvtepu8_epi32(bytes);
    const __m256 level = _mm256_cvtepi32_ps(_mm256_srli_epi32(code, 1));
    const __m256i v = _mm256_castps_si256(_mm256_fmadd_ps(level, high, _mm256_mul_ps(level, low))),
                  restored = _mm256_or_si256(v, _mm256_slli_epi32(code, 31));
    if (some == 8) {
      qsgd_store_avx2(out + i, restored);
    } else {
      alignas(32) uint32_t last[8];
      qsgd_store_avx2(last, restored);
      std::copy(last, last + some, out + i);
    }
  }
  alignas(16) uint8_t lanes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), largest);
  return *std::max_element(lanes, lanes + 16);
}

}  // namespace

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

// (Here, between the target pragmas: gcc would instantiate templates used below without these instructions.)
template void qsgd_values_avx2<f32_type>(const uint32_t*, size_t, float, uint32_t, f32_type::bits*);
template void qsgd_values_avx2<f16_type>(const uint32_t*, size_t, float, uint32_t, f16_type::bits*);
template void qsgd_values_avx2<bf16_type>(const uint32_t*, size_t, float, uint32_t, bf16_type::bits*);

template <class T>
void qsgd_encode_avx2(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  qsgd_encode_blocks<T, qsgd_squares_avx2<T>, qsgd_codes_avx2<T>>(values, l, key, out);
}
template <class T>
qsgd_verdict qsgd_decode_avx2(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  return qsgd_decode_blocks<T, qsgd_unpack_avx2, qsgd_values_avx2<T>, qsgd_bytes_avx2>(in, l, out);
}

template void qsgd_encode_avx2<f32_type>(const f32_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_avx2<f32_type>(const uint8_t*, const qsgd_layout&, f32_type::bits*);
template void qsgd_encode_avx2<f16_type>(const f16_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_avx2<f16_type>(const uint8_t*, const qsgd_layout&, f16_type::bits*);
template void qsgd_encode_avx2<bf16_type>(const bf16_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_avx2<bf16_type>(const uint8_t*, const qsgd_layout&, bf16_type::bits*);

}  // namespace dr
DR_ISA_END
#endif
