// Vectors of f32 with one set of operations at every level of instructions: loops over them are templates. A kernel of
// several levels has the same bits at each, for an operation is that of IEEE 754 in every lane.
#pragma once

#include <cstring>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

struct floats_4 {
  struct vector {
    float v[4];
  };
  static constexpr uint32_t lanes = 4;

  template <class F>
  DR_EVERYWHERE static vector by_lane(F&& f) {
    vector x;
    for (uint32_t i = 0; i < lanes; ++i) x.v[i] = f(i);
    return x;
  }
  DR_EVERYWHERE static vector all(float x) {
    return by_lane([&](uint32_t) { return x; });
  }
  DR_EVERYWHERE static vector load(const float* from) {
    return by_lane([&](uint32_t i) { return from[i]; });
  }
  DR_EVERYWHERE static void store(float* to, const vector& x) { std::memcpy(to, x.v, sizeof x.v); }
  DR_EVERYWHERE static vector add(const vector& x, const vector& y) {
    return by_lane([&](uint32_t i) { return x.v[i] + y.v[i]; });
  }
  DR_EVERYWHERE static vector sub(const vector& x, const vector& y) {
    return by_lane([&](uint32_t i) { return x.v[i] - y.v[i]; });
  }
  DR_EVERYWHERE static vector mul(const vector& x, const vector& y) {
    return by_lane([&](uint32_t i) { return x.v[i] * y.v[i]; });
  }
  // A NaN becomes computed_nan.
  DR_EVERYWHERE static vector clean(const vector& x) {
    return by_lane([&](uint32_t i) { return computed(x.v[i]); });
  }
  // to [c][r] = from [r][c], 8 by 8.
  DR_EVERYWHERE static void transpose_8(const float* from, uint64_t from_stride, float* to, uint64_t to_stride) {
    for (uint32_t r = 0; r < 8; ++r)
      for (uint32_t c = 0; c < 8; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
};

}  // namespace dr

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

struct floats_8 {
  using vector = __m256;
  static constexpr uint32_t lanes = 8;

  DR_EVERYWHERE static vector all(float x) { return _mm256_set1_ps(x); }
  DR_EVERYWHERE static vector load(const float* from) { return _mm256_loadu_ps(from); }
  DR_EVERYWHERE static void store(float* to, vector x) { _mm256_storeu_ps(to, x); }
  DR_EVERYWHERE static vector add(vector x, vector y) { return _mm256_add_ps(x, y); }
  DR_EVERYWHERE static vector sub(vector x, vector y) { return _mm256_sub_ps(x, y); }
  DR_EVERYWHERE static vector mul(vector x, vector y) { return _mm256_mul_ps(x, y); }
  DR_EVERYWHERE static vector clean(vector x) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(computed_nan));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  // (Eight rows of eight: pairs, quads, halves.)
  static void transpose_8(const float* from, uint64_t from_stride, float* to, uint64_t to_stride) {
    __m256 r[8], t[8];
    for (unsigned i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
    for (unsigned i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (unsigned i = 0; i < 8; i += 4)
      for (unsigned k = 0; k < 2; ++k) {
        r[i + 2 * k] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0x44);
        r[i + 2 * k + 1] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0xee);
      }
    for (unsigned i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
};

}  // namespace dr
DR_ISA_END

DR_AVX512_BEGIN
namespace dr {

struct floats_16 {
  using vector = __m512;
  static constexpr uint32_t lanes = 16;

  DR_EVERYWHERE static vector all(float x) { return _mm512_set1_ps(x); }
  DR_EVERYWHERE static vector load(const float* from) { return _mm512_loadu_ps(from); }
  DR_EVERYWHERE static void store(float* to, vector x) { _mm512_storeu_ps(to, x); }
  DR_EVERYWHERE static vector add(vector x, vector y) { return _mm512_add_ps(x, y); }
  DR_EVERYWHERE static vector sub(vector x, vector y) { return _mm512_sub_ps(x, y); }
  DR_EVERYWHERE static vector mul(vector x, vector y) { return _mm512_mul_ps(x, y); }
  DR_EVERYWHERE static vector clean(vector x) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(computed_nan));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
  }
  static void transpose_8(const float* from, uint64_t from_stride, float* to, uint64_t to_stride) {
    floats_8::transpose_8(from, from_stride, to, to_stride);
  }
};

}  // namespace dr
DR_ISA_END
#endif
