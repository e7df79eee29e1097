// Uniform quantisation 16 values at a time: the scalar's lanes are the vector's.
#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"

#if DR_X86

namespace dr {

DR_AVX512_BEGIN

namespace {

inline __mmask16 first_lanes(size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

inline double lane_sum(const __m512 (&v)[2]) {
  alignas(64) float lanes[uniform_lanes];
  _mm512_store_ps(lanes, v[0]);
  _mm512_store_ps(lanes + 16, v[1]);
  return uniform_lane_sum(lanes);
}

struct quantiser {
  __m512 least, inverse, half = _mm512_set1_ps(0.5f);
  __m512 first[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, second[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  __m512i total = _mm512_setzero_si512(), largest = _mm512_setzero_si512();

  // Of 16 values those in `some`, the rest being zeros. Returns their signs.
  template <bool all>
  uint32_t put(__m512i bits, __mmask16 some, int h, uint16_t* levels) {
    const __m512 magnitude = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(f32_type::magnitude_mask)));
    // Clamped as an integer (too large values convert to 2^31): additions, comparisons and conversions share two of
    // four ports.
    const __m512 x = _mm512_mul_ps(_mm512_sub_ps(magnitude, least), inverse);
    const __m512i whole = all ? _mm512_cvttps_epi32(x) : _mm512_maskz_cvttps_epi32(some, x);
    const __m512i level = _mm512_min_epu32(whole, _mm512_set1_epi32(65535));
    __m512 g = _mm512_sub_ps(_mm512_reduce_ps(x, 9), half);  // x less its floor, exactly
    if (!all) g = _mm512_maskz_mov_ps(some, g);
    first[h] = _mm512_add_ps(first[h], g);
    second[h] = _mm512_add_ps(second[h], _mm512_mul_ps(g, g));
    total = _mm512_add_epi32(total, level);
    largest = _mm512_max_epi32(largest, level);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels), _mm512_cvtepi32_epi16(level));
    return _mm512_movepi32_mask(bits);
  }
};

}  // namespace

double uniform_squares_avx512(const uint32_t* values, size_t n, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  const auto add = [&](__m512 v, size_t h) {
    v = _mm512_mul_ps(v, factor);
    sum[h] = _mm512_add_ps(sum[h], _mm512_mul_ps(v, v));
  };
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    add(_mm512_loadu_ps(values + i), 0);
    add(_mm512_loadu_ps(values + i + 16), 1);
  }
  for (size_t h = 0; i < n; i += 16, ++h) add(_mm512_maskz_loadu_ps(first_lanes(n - i), values + i), h);
  return lane_sum(sum);
}

uniform_sums uniform_quantise_avx512(const uint32_t* values, size_t n, uniform_step s, uint16_t* levels,
                                     uint8_t* signs) {
  quantiser q{_mm512_set1_ps(s.least), _mm512_set1_ps(s.inverse)};
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    uint32_t negative = q.put<true>(_mm512_loadu_si512(values + i), 0, 0, levels + i);
    negative |= q.put<true>(_mm512_loadu_si512(values + i + 16), 0, 1, levels + i + 16) << 16;
    std::memcpy(signs + i / 8, &negative, 4);
  }
  for (int h = 0; i < n; i += 16, ++h) {
    const __mmask16 some = first_lanes(n - i);
    const uint32_t negative = q.put<false>(_mm512_maskz_loadu_epi32(some, values + i), some, h, levels + i);
    std::memcpy(signs + i / 8, &negative, n - i > 8 ? 2 : 1);
  }
  for (; i % 64; i += 16) _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + i), _mm256_setzero_si256());
  uniform_sums sums;
  sums.levels = static_cast<uint32_t>(_mm512_reduce_add_epi32(q.total));
  sums.beyond = _mm512_reduce_max_epi32(q.largest) == 65535;
  sums.first = lane_sum(q.first);
  sums.second = lane_sum(q.second);
  return sums;
}

void uniform_restore_avx512(const uint16_t* levels, size_t n, const uint8_t* signs, float base, float step,
                            uint32_t* values) {
  const __m512 first = _mm512_set1_ps(base), width = _mm512_set1_ps(step), largest = _mm512_set1_ps(FLT_MAX);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const auto value = [&](__m256i level) {
    const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(level));
    return _mm512_castps_si512(_mm512_min_ps(_mm512_add_ps(first, _mm512_mul_ps(width, x)), largest));
  };
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint16_t negative;
    std::memcpy(&negative, signs + i / 8, 2);
    const __m512i v = value(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + i)));
    _mm512_storeu_si512(values + i, _mm512_mask_or_epi32(v, negative, v, sign));
  }
  if (i < n) {
    const __mmask16 some = first_lanes(n - i);
    const uint32_t negative = signs[i / 8] | (n - i > 8 ? uint32_t{signs[i / 8 + 1]} << 8 : 0);
    const __m512i v = value(_mm256_maskz_loadu_epi16(some, levels + i));
    _mm512_mask_storeu_epi32(values + i, some, _mm512_mask_or_epi32(v, static_cast<__mmask16>(negative), v, sign));
  }
}

DR_ISA_END

}  // namespace dr

#endif
