// Uniform quantisation 32 values at a time: four vectors are the scalar's lanes.
#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"

#if DR_X86

namespace dr {

DR_AVX2_BEGIN

namespace {

inline __m256 load_values(const uint32_t* values) { return _mm256_loadu_ps(reinterpret_cast<const float*>(values)); }

// Sums so far, and the values after the last whole 32.
template <class F>
double lane_sum(const __m256 (&sums)[4], size_t begin, size_t n, F&& term) {
  float lanes[uniform_lanes];
  for (size_t h = 0; h < 4; ++h) _mm256_storeu_ps(lanes + 8 * h, sums[h]);
  for (size_t i = begin; i < n; ++i) lanes[i - begin] += term(i);
  return uniform_lane_sum(lanes);
}

}  // namespace

double uniform_squares_avx2(const uint32_t* values, size_t n, float scale) {
  const __m256 factor = _mm256_set1_ps(scale);
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  size_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (size_t h = 0; h < 4; ++h) {
      const __m256 v = _mm256_mul_ps(load_values(values + i + 8 * h), factor);
      sums[h] = _mm256_add_ps(sums[h], _mm256_mul_ps(v, v));
    }
  return lane_sum(sums, i, n, [&](size_t j) {
    float v;
    std::memcpy(&v, values + j, 4);
    v *= scale;
    return v * v;
  });
}

uniform_sums uniform_quantise_avx2(const uint32_t* values, size_t n, uniform_step s, uint16_t* levels, uint8_t* signs) {
  const __m256 least = _mm256_set1_ps(s.least), inverse = _mm256_set1_ps(s.inverse), top = _mm256_set1_ps(65535.0f),
               half = _mm256_set1_ps(0.5f),
               magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(f32_type::magnitude_mask));
  __m256 first[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()},
         second[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  __m256i total = _mm256_setzero_si256(), largest = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i level[4];
    uint32_t negative = 0;
    for (size_t h = 0; h < 4; ++h) {
      const __m256 v = load_values(values + i + 8 * h);
      negative |= static_cast<uint32_t>(_mm256_movemask_ps(v)) << 8 * h;
      const __m256 x = _mm256_min_ps(_mm256_mul_ps(_mm256_sub_ps(_mm256_and_ps(v, magnitude), least), inverse), top);
      level[h] = _mm256_cvttps_epi32(x);
      const __m256 g = _mm256_sub_ps(_mm256_sub_ps(x, _mm256_cvtepi32_ps(level[h])), half);
      first[h] = _mm256_add_ps(first[h], g);
      second[h] = _mm256_add_ps(second[h], _mm256_mul_ps(g, g));
      total = _mm256_add_epi32(total, level[h]);
      largest = _mm256_max_epi32(largest, level[h]);
    }
    std::memcpy(signs + i / 8, &negative, 4);
    for (size_t h = 0; h < 4; h += 2)
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(levels + i + 8 * h),
          _mm256_permute4x64_epi64(_mm256_packus_epi32(level[h], level[h + 1]), _MM_SHUFFLE(3, 1, 2, 0)));
  }
  // The rest by scalar, whose sums then go to the lanes.
  float g[uniform_lanes];
  uniform_sums sums;
  const size_t begin = i;
  if (i < n) std::memset(signs + i / 8, 0, (n - i + 7) / 8);
  for (; i < n; ++i) {
    signs[i / 8] = static_cast<uint8_t>(signs[i / 8] | values[i] >> 31 << i % 8);
    const uint32_t bits = values[i] & 0x7fffffff;
    float x;
    std::memcpy(&x, &bits, 4);
    x = (x - s.least) * s.inverse;
    x = x < 65535.0f ? x : 65535.0f;
    const auto level = static_cast<int32_t>(x);
    g[i - begin] = x - static_cast<float>(level) - 0.5f;
    levels[i] = static_cast<uint16_t>(level);
    sums.levels += static_cast<uint32_t>(level);
    sums.beyond |= level == 65535;
  }
  for (; i % 64; ++i) levels[i] = 0;
  alignas(32) uint32_t lanes[2][8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[0]), total);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[1]), largest);
  for (size_t j = 0; j < 8; ++j) {
    sums.levels += lanes[0][j];
    sums.beyond |= lanes[1][j] == 65535;
  }
  sums.first = lane_sum(first, begin, n, [&](size_t j) { return g[j - begin]; });
  sums.second = lane_sum(second, begin, n, [&](size_t j) { return g[j - begin] * g[j - begin]; });
  return sums;
}

void uniform_restore_avx2(const uint16_t* levels, size_t n, const uint8_t* signs, float base, float step,
                          uint32_t* values) {
  const __m256 first = _mm256_set1_ps(base), width = _mm256_set1_ps(step), largest = _mm256_set1_ps(FLT_MAX);
  const __m256i places = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + i));
    const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(narrow));
    const __m256i v = _mm256_castps_si256(_mm256_min_ps(_mm256_add_ps(first, _mm256_mul_ps(width, x)), largest));
    const __m256i negative = _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(signs[i / 8]), places), sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), _mm256_or_si256(v, negative));
  }
  if (i < n) uniform_restore_scalar(levels + i, n - i, signs + i / 8, base, step, values + i);
}

DR_ISA_END

}  // namespace dr

#endif
