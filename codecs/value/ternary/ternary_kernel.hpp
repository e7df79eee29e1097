// Ternary values by chance (TernGrad, Wen et al. 2017; layout and draws: SPEC.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codecs/family/ternary/ternary_digits.hpp"
#include "primitive/rng.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

DR_HD constexpr uint64_t ternary_size(uint64_t n) { return 4 + ceil_div(n, ternary_group); }

// Σ (v − mean)², and the largest magnitude.
DR_HD inline double ternary_square(double v, double mean) { return (v - mean) * (v - mean); }
template <class T>
double ternary_squares_scalar(const typename T::bits* values, uint64_t n, uint32_t& largest) {
  largest = ternary_largest_scalar<T>(values, n);
  const auto sum_of = [&](auto&& term) {
    return tree_sum(n, [&](uint64_t i) { return term(double{T::to_f32(values[i])}); });
  };
  const double mean = sum_of([](double v) { return v; }) / static_cast<double>(n);
  return sum_of([&](double v) { return ternary_square(v, mean); });
}

// The scale of n values: the largest magnitude, but at most `clip` standard deviations, rounded to the type, unless that
// is 0.
template <class T>
DR_HD typename T::bits ternary_scale(uint32_t largest_bits, double squares, uint64_t n, double clip) {
  const auto largest = static_cast<typename T::bits>(largest_bits);
  const auto limit = T::from_f64(saturate<T>(clip * std::sqrt(squares / static_cast<double>(n))));
  return limit && limit < largest ? limit : largest;
}

// The digit of a value: its sign if |v| > u · scale. The product has 24 + 24 bits, so it is exact.
DR_HD inline uint8_t ternary_drawn(float value, float scale, uint64_t drawn) {
  const double v = value, limit = unit_interval(drawn) * double{scale};
  return static_cast<uint8_t>(1 + (v > limit) - (-v > limit));
}

// Digits of n values, from position `first` of the stream on. Room for ternary_digits_slack more digits.
template <class T>
void ternary_draw_scalar(const typename T::bits* values, size_t n, float scale, uint64_t key, uint64_t first,
                         uint8_t* digits) {
  for (size_t i = 0; i < n; ++i) digits[i] = ternary_drawn(T::to_f32(values[i]), scale, draw(key, first + i));
}

template <class T>
double ternary_squares_avx2(const typename T::bits* values, uint64_t n, uint32_t& largest);
template <class T>
double ternary_squares_avx512(const typename T::bits* values, uint64_t n, uint32_t& largest);
template <class T>
void ternary_draw_avx2(const typename T::bits* values, size_t n, float scale, uint64_t key, uint64_t first,
                       uint8_t* digits);
template <class T>
void ternary_draw_avx512(const typename T::bits* values, size_t n, float scale, uint64_t key, uint64_t first,
                         uint8_t* digits);

template <class T>
inline constexpr cpu_table<decltype(&ternary_squares_scalar<T>)> ternary_squares{
    ternary_squares_scalar<T>, on_x86(ternary_squares_avx2<T>), on_x86(ternary_squares_avx512<T>)};
template <class T>
inline constexpr cpu_table<decltype(&ternary_draw_scalar<T>)> ternary_draw{
    ternary_draw_scalar<T>, on_x86(ternary_draw_avx2<T>), on_x86(ternary_draw_avx512<T>)};

}  // namespace dr
