// Uniform quantisation of magnitudes from the smallest one upward, with a sign apart (layout: SPEC.md).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codecs/family/levels/quantised.hpp"
#include "codecs/family/levels/split_levels.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// Every sum here is of 32 lanes, lane i % 32 in f32, which a block then adds up pairwise in f64: the same order at
// every level.
inline constexpr size_t uniform_lanes = 32;

inline double uniform_lane_sum(const float* lanes) {
  double sum[uniform_lanes];
  for (size_t i = 0; i < uniform_lanes; ++i) sum[i] = lanes[i];
  for (size_t h = uniform_lanes / 2; h > 0; h /= 2)
    for (size_t i = 0; i < h; ++i) sum[i] += sum[i + h];
  return sum[0];
}

// ---- Survey: the sum of squares --------------------------------------------------------------------------

// Σ (v · scale)², n <= level_block; the scale is a power of two that brings the largest below 2.
inline double uniform_squares_scalar(const uint32_t* values, size_t n, float scale) {
  float lanes[uniform_lanes] = {};
  for (size_t i = 0; i < n; ++i) {
    const float v = f32_type::to_f32(values[i]) * scale;
    lanes[i % uniform_lanes] += v * v;
  }
  return uniform_lane_sum(lanes);
}

// ---- Quantising a block ----------------------------------------------------------------------------------

struct uniform_step {
  float least, step, inverse;  // inverse = 1 / step
};
// Of levels; g = x − level − 1/2 in units of a step.
struct uniform_sums {
  uint32_t levels = 0;
  bool beyond = false;           // a level would be level_max or more: the rest means nothing
  double first = 0, second = 0;  // Σ g, Σ g²
};

//   values [n], n <= level_block, magnitudes at least `least`     levels: n, and zeros up to a multiple of 64
//   signs: ⌈n / 8⌉ bytes, low bit first, zero-padded
inline uniform_sums uniform_quantise_scalar(const uint32_t* values, size_t n, uniform_step s, uint16_t* levels,
                                            uint8_t* signs) {
  float first[uniform_lanes] = {}, second[uniform_lanes] = {};
  uniform_sums sums;
  std::memset(signs, 0, ceil_div(n, 8));
  for (size_t i = 0; i < n; ++i) {
    signs[i / 8] = static_cast<uint8_t>(signs[i / 8] | values[i] >> 31 << i % 8);
    const float above = f32_type::to_f32(values[i] & f32_type::magnitude_mask) - s.least;
    float x = above * s.inverse;
    x = x < 65535.0f ? x : 65535.0f;
    const auto level = static_cast<int32_t>(x);
    const float g = x - static_cast<float>(level) - 0.5f;
    first[i % uniform_lanes] += g;
    second[i % uniform_lanes] += g * g;
    levels[i] = static_cast<uint16_t>(level);
    sums.levels += static_cast<uint32_t>(level);
    sums.beyond |= level == 65535;
  }
  for (size_t i = n; i % 64; ++i) levels[i] = 0;
  sums.first = uniform_lane_sum(first);
  sums.second = uniform_lane_sum(second);
  return sums;
}

// ---- And back --------------------------------------------------------------------------------------------

inline float uniform_value(float base, float step, uint32_t level) { return base + step * static_cast<float>(level); }

//   levels [n], n <= level_block     values [n]: float bits; a magnitude beyond the largest finite number is that
inline void uniform_restore_scalar(const uint16_t* levels, size_t n, const uint8_t* signs, float base, float step,
                                   uint32_t* values) {
  for (size_t i = 0; i < n; ++i) {
    const float v = uniform_value(base, step, levels[i]);
    const float finite = v < FLT_MAX ? v : FLT_MAX;
    values[i] = std::bit_cast<uint32_t>(finite) | uint32_t{signs[i / 8]} >> i % 8 << 31;
  }
}

double uniform_squares_avx2(const uint32_t* values, size_t n, float scale);
uniform_sums uniform_quantise_avx2(const uint32_t* values, size_t n, uniform_step s, uint16_t* levels, uint8_t* signs);
void uniform_restore_avx2(const uint16_t* levels, size_t n, const uint8_t* signs, float base, float step,
                          uint32_t* values);
double uniform_squares_avx512(const uint32_t* values, size_t n, float scale);
uniform_sums uniform_quantise_avx512(const uint32_t* values, size_t n, uniform_step s, uint16_t* levels,
                                     uint8_t* signs);
void uniform_restore_avx512(const uint16_t* levels, size_t n, const uint8_t* signs, float base, float step,
                            uint32_t* values);
inline constexpr cpu_table<decltype(&uniform_squares_scalar)> uniform_squares{
    uniform_squares_scalar, on_x86(uniform_squares_avx2), on_x86(uniform_squares_avx512)};
inline constexpr cpu_table<decltype(&uniform_quantise_scalar)> uniform_quantise{
    uniform_quantise_scalar, on_x86(uniform_quantise_avx2), on_x86(uniform_quantise_avx512)};
inline constexpr cpu_table<decltype(&uniform_restore_scalar)> uniform_restore{
    uniform_restore_scalar, on_x86(uniform_restore_avx2), on_x86(uniform_restore_avx512)};

}  // namespace dr
