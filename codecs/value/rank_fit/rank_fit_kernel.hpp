// A sign and one of 2^bits levels per value; the levels are a fitted curve of their rank (layout, arithmetic:
// SPEC.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codecs/family/fits/gram.hpp"
#include "codecs/family/fits/least_squares.hpp"
#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/exp2.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned rank_fit_bits_max = 8, rank_fit_degree_max = 7;
inline constexpr unsigned rank_fit_levels_max = 1u << rank_fit_bits_max;
// Powers of two beyond these are 0, or above the largest number, in every type.
inline constexpr double rank_fit_lowest = -160, rank_fit_highest = 130;

// The payload of n values: coefficients, signs, codes.
struct rank_fit_layout {
  unsigned bits, coefficients;
  uint64_t n, signs, codes, size;  // where signs and codes begin

  constexpr rank_fit_layout(unsigned bits, unsigned degree, uint64_t n)
      : bits(bits),
        coefficients(degree < (1u << bits) ? degree + 1 : 1u << bits),
        n(n),
        signs(4 * coefficients),
        codes(signs + ceil_div(n, 8)),
        size(codes + ceil_div(n * bits, 8)) {}
};

// Levels 0 … 2^bits - 1 of a curve.
inline void rank_fit_levels(unsigned bits, unsigned count, const float* coefficients, double* level) {
  const unsigned levels = 1u << bits;
  double b[rank_fit_degree_max + 1] = {};
  for (unsigned j = 1; j < count; ++j) b[j] = gram_b(levels, j);
  for (unsigned i = 0; i < levels; ++i) {
    const double t = gram_at(i, levels, count, b, coefficients);
    level[i] = portable_exp2(t < rank_fit_lowest ? rank_fit_lowest : t > rank_fit_highest ? rank_fit_highest : t);
  }
}

// ---- Encoder: the fit -------------------------------------------------------------------------------------

// Values are counted by the leading bits of their magnitude as f32: exactly, so in any order. A bin lies within an
// octave, where magnitudes are linear in their bits; so a count and a sum of the next bits give its mean. Of 2048 bins
// the top 1 % of Laplace values fill 1500, in 24 KiB.
inline constexpr uint32_t rank_fit_bins = 2048;
struct rank_fit_bin {
  uint64_t half[2];  // of even and of odd values, so that neighbours in one bin need not wait: sum + count · 2^32
};
inline constexpr uint32_t rank_fit_octaves = 24;  // below the highest; smaller ones count as that

// The bins that hold something, in ascending order: their means, and sums over all bins before.
struct rank_fit_curve {
  uint32_t size = 0;
  double squares = 0;  // Σ n v²
  double value[rank_fit_bins], count[rank_fit_bins + 1], sum[rank_fit_bins + 1];

  // Bins from `first` to before `last`: how many values, and their sum.
  double counted(uint32_t first, uint32_t last) const { return count[last] - count[first]; }
  double summed(uint32_t first, uint32_t last) const { return sum[last] - sum[first]; }
};

inline double rank_fit_number(uint32_t key) { return static_cast<double>(std::bit_cast<float>(key)); }

// A magnitude 24 octaves below another, 1 at least where that is not 0. (In integers: f32 arithmetic may flush it to 0.)
constexpr uint32_t rank_fit_floor(uint32_t highest) {
  const uint32_t exponent = highest >> 23;
  if (exponent > rank_fit_octaves) return highest - (rank_fit_octaves << 23);
  const uint32_t below = exponent ? ((highest & 0x7fffff) | 0x800000) >> (rank_fit_octaves + 1 - exponent) : 0;
  return std::min(highest, std::max(below, 1u));
}

// key(i): the magnitude of value i of n > 0, as bits of an f32; `lowest` and `highest` of them are known.
template <class F>
void rank_fit_count(uint64_t n, uint32_t lowest, uint32_t highest, F&& key, rank_fit_bin* bins, rank_fit_curve& curve) {
  const uint32_t floor = std::max(lowest, rank_fit_floor(highest));
  unsigned shift = 0;
  while ((highest >> shift) - (floor >> shift) >= rank_fit_bins) ++shift;
  const uint32_t first = floor >> shift, used = (highest >> shift) - first + 1;
  const auto low_bits = static_cast<uint32_t>(low_mask(shift));
  // So many of the lower bits that the sum of n of them is below 2^32; the cut-off bits count as their middle.
  const unsigned cut = shift - std::min(shift, 32 - bit_width(n));
  const double middle = 0.5 * static_cast<double>(low_mask(cut));
  std::fill_n(bins, used, rank_fit_bin{});
  // Four keys are read before a bin is written (0.83 ns a value instead of 1.17).
  const auto add = [&](uint32_t k, unsigned half) {
    bins[(k >> shift) - first].half[half] += uint64_t{1} << 32 | (k & low_bits) >> cut;
  };
  const auto raised = [&](uint64_t i) { return std::max<uint32_t>(key(i), floor); };
  uint64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint32_t k0 = raised(i), k1 = raised(i + 1), k2 = raised(i + 2), k3 = raised(i + 3);
    add(k0, 0);
    add(k1, 1);
    add(k2, 0);
    add(k3, 1);
  }
  for (; i < n; ++i) add(raised(i), 0);
  curve.size = 0;
  curve.squares = curve.count[0] = curve.sum[0] = 0;
  for (uint32_t j = 0; j < used; ++j) {
    const uint64_t even = bins[j].half[0], odd = bins[j].half[1], counted = (even >> 32) + (odd >> 32);
    if (counted == 0) continue;
    const auto low = static_cast<double>(((even & 0xffffffff) + (odd & 0xffffffff)) << cut);
    const auto count = static_cast<double>(counted);
    const uint32_t base = (first + j) << shift;
    // (Of one magnitude, the next might be infinite.)
    const double step = shift ? rank_fit_number(base + 1) - rank_fit_number(base) : 0;
    const double value = rank_fit_number(base) + step * (low / count + middle);
    curve.value[curve.size] = value;
    curve.count[curve.size + 1] = curve.count[curve.size] + count;
    curve.sum[curve.size + 1] = curve.sum[curve.size] + count * value;
    curve.squares += count * (value * value);
    ++curve.size;
  }
}

// The starts of the levels' bins: first[i] … first[i+1] - 1 are nearest to level i (ascending), halves go up.
inline void rank_fit_cells(const rank_fit_curve& curve, unsigned levels, const double* level, uint32_t* first) {
  const double *const end = curve.value + curve.size, *at = curve.value;
  first[0] = 0;
  for (unsigned i = 1; i < levels; ++i) {
    at = std::lower_bound(at, end, (level[i - 1] + level[i]) / 2);
    first[i] = static_cast<uint32_t>(at - curve.value);
  }
  first[levels] = curve.size;
}

inline double rank_fit_error(const rank_fit_curve& curve, unsigned levels, const double* level, const uint32_t* first) {
  double error = curve.squares;
  for (unsigned i = 0; i < levels; ++i)
    error += level[i] * (level[i] * curve.counted(first[i], first[i + 1]) - 2 * curve.summed(first[i], first[i + 1]));
  return error;
}

// Levels as dense as the 5/16th power of the values are: that is near 1/3, of which the error is least where levels are
// many (Panter, Dite 1951), and square roots are enough for it.
inline void rank_fit_start(const rank_fit_curve& curve, unsigned levels, double* level) {
  const auto weight = [&](uint32_t j) {
    const uint32_t before = j ? j - 1 : 0, behind = j + 1 < curve.size ? j + 1 : j;
    const double width = curve.value[behind] - curve.value[before];
    const double fourth = std::sqrt(std::sqrt(curve.counted(j, j + 1) * (width * width)));
    return fourth * std::sqrt(std::sqrt(fourth));
  };
  double up_to[rank_fit_bins], total = 0;
  for (uint32_t j = 0; j < curve.size; ++j) up_to[j] = total += weight(j);
  uint32_t j = 0;
  for (unsigned i = 0; i < levels; ++i) {
    while (j + 1 < curve.size && up_to[j] < total * ((i + 0.5) / levels)) ++j;
    level[i] = curve.value[j];
  }
}

inline double rank_fit_log2(double v) { return v < 0x1p-149 ? rank_fit_lowest : portable_log2(v); }

// Lloyd's iteration (Lloyd 1982), but that the levels move to a curve near the means of their cells, instead of to the
// means: least squares of the means' logarithms, weighed so that it is that of the means. Returns the best coefficients
// met.
inline void rank_fit_fit(const rank_fit_curve& curve, unsigned bits, unsigned count, float* coefficients) {
  constexpr unsigned lloyd_steps = 8, steps_max = 40, patience = 4;
  const unsigned levels = 1u << bits;
  double level[rank_fit_levels_max], best = HUGE_VAL;
  uint32_t first[rank_fit_levels_max + 1];
  // Takes a curve if it is the best so far. Its error; its levels stay in `level`, its cells in `first`.
  const auto take = [&](const float* c) -> double {
    rank_fit_levels(bits, count, c, level);
    if (!std::is_sorted(level, level + levels)) return HUGE_VAL;
    rank_fit_cells(curve, levels, level, first);
    const double error = rank_fit_error(curve, levels, level, first);
    if (error < best) {
      best = error;
      std::copy_n(c, count, coefficients);
    }
    return error;
  };
  // Before all, levels that are uniform in the logarithm: the middles of equal parts, then those from end to end, which
  // two values need.
  const double low = rank_fit_log2(curve.value[0]), high = rank_fit_log2(curve.value[curve.size - 1]);
  float c[rank_fit_degree_max + 1] = {static_cast<float>(0.5 * (low + high)), static_cast<float>(0.5 * (high - low))};
  take(c);
  if (curve.size == 1) return;
  // One level, the mean.
  const float mean[rank_fit_degree_max + 1] = {
      static_cast<float>(rank_fit_log2(curve.summed(0, curve.size) / curve.counted(0, curve.size)))};
  take(mean);
  c[1] = static_cast<float>(0.5 * (high - low) * (levels / (levels - 1.0)));
  take(c);

  rank_fit_start(curve, levels, level);
  double b[rank_fit_degree_max + 1] = {};
  for (unsigned j = 1; j < count; ++j) b[j] = gram_b(levels, j);
  // An empty cell holds its level where it is, but loosely.
  const double nothing = 1e-7 * (curve.squares / levels);
  double last = HUGE_VAL;
  unsigned used = count;  // fewer where that many give levels that do not ascend
  for (unsigned step = 0, idle = 0; step < steps_max && idle < patience; ++step) {
    rank_fit_cells(curve, levels, level, first);
    for (unsigned i = 0; i < levels; ++i)
      if (const double n = curve.counted(first[i], first[i + 1]); n > 0)
        level[i] = curve.summed(first[i], first[i + 1]) / n;
    if (step < lloyd_steps) continue;
    double a[rank_fit_degree_max + 1][rank_fit_degree_max + 1] = {}, y[rank_fit_degree_max + 1] = {};
    for (unsigned i = 0; i < levels; ++i) {
      const double weight = curve.counted(first[i], first[i + 1]) * (level[i] * level[i]) + nothing;
      const double target = rank_fit_log2(level[i]);
      double p[rank_fit_degree_max + 1];
      gram_basis(i, levels, used, b, p);
      for (unsigned j = 0; j < used; ++j) {
        for (unsigned k = 0; k <= j; ++k) a[j][k] += weight * (p[j] * p[k]);
        y[j] += weight * (p[j] * target);
      }
    }
    solve_normal(used, a, y);
    for (unsigned j = 0; j < count; ++j) c[j] = j < used ? static_cast<float>(y[j]) : 0;
    const double error = take(c);
    if (error == HUGE_VAL) {
      if (used <= 2) break;
      --used;
      rank_fit_start(curve, levels, level);
      step = idle = 0;
    } else {
      idle = error < 0.9999 * last ? 0 : idle + 1;
    }
    last = error;
  }
}

// The lowest magnitude, as bits of an f32, that is nearer to level i than to the one before, for i > 0; 0 for i = 0.
// level: as decode has them, ascending.
inline void rank_fit_thresholds(unsigned levels, const double* level, uint32_t* threshold) {
  threshold[0] = 0;
  for (unsigned i = 1; i < levels; ++i) {
    const double middle = (level[i - 1] + level[i]) / 2;
    const auto near = static_cast<float>(middle);
    threshold[i] = std::bit_cast<uint32_t>(near) + (static_cast<double>(near) < middle);
  }
}

// ---- Codes ------------------------------------------------------------------------------------------------

// How many thresholds but the first are at or below a magnitude.
inline uint32_t rank_fit_code(uint32_t key, unsigned bits, const uint32_t* threshold) {
  uint32_t code = 0;
  for (uint32_t step = 1u << bits >> 1; step > 0; step /= 2) code += key >= threshold[code + step] ? step : 0;
  return code;
}

// Values from `begin` (a multiple of 8) on; signs and codes begin where those of value 0 lie.
template <class T>
void rank_fit_put_codes(const typename T::bits* values, uint64_t begin, uint64_t n, unsigned bits,
                        const uint32_t* threshold, uint8_t* signs, uint8_t* codes) {
  bit_writer s(signs + begin / 8), c(codes + begin / 8 * bits);
  for (uint64_t i = begin; i < n; ++i) {
    const auto key = std::bit_cast<uint32_t>(T::to_f32(values[i])) & 0x7fffffff;
    s.put(values[i] > T::magnitude_mask, 1);
    c.put(rank_fit_code(key, bits, threshold), bits);
  }
  s.finish();
  c.finish();
}

// level: of 2^bits levels, the bits of the type. Reads no byte past the last code.
template <class T>
void rank_fit_get_values(const uint8_t* signs, const uint8_t* codes, uint64_t begin, uint64_t n, unsigned bits,
                         const typename T::bits* level, typename T::bits* out) {
  using word = typename T::bits;
  uint64_t i = begin;
  codes += begin / 8 * bits;
  for (; i + 8 <= n; i += 8, codes += bits) {
    const uint64_t eight = load_bytes(codes, bits);
    const uint32_t negative = signs[i / 8];
    for (unsigned k = 0; k < 8; ++k)
      out[i + k] = static_cast<word>(level[(eight >> (k * bits)) & low_mask(bits)] |
                                     static_cast<word>((negative >> k & 1) * (word{T::magnitude_mask} + 1u)));
  }
  bit_reader rest(codes, (n - i) * bits);
  for (; i < n; ++i)
    out[i] = static_cast<word>(level[rest.get(bits)] |
                               static_cast<word>((signs[i / 8] >> i % 8 & 1) * (word{T::magnitude_mask} + 1u)));
}

// ---- Payloads --------------------------------------------------------------------------------------------

// Payloads but for their coefficients; `out` and `in` begin with those. level: of decode, as bits of the type.

template <class T>
void rank_fit_encode_scalar(const typename T::bits* values, const rank_fit_layout& l, const uint32_t* threshold,
                            uint8_t* out) {
  rank_fit_put_codes<T>(values, 0, l.n, l.bits, threshold, out + l.signs, out + l.codes);
}
template <class T>
void rank_fit_decode_scalar(const uint8_t* in, const rank_fit_layout& l, const typename T::bits* level,
                            typename T::bits* out) {
  rank_fit_get_values<T>(in + l.signs, in + l.codes, 0, l.n, l.bits, level, out);
}

// The lowest and the highest magnitude of n > 0 values, as bits of the type.
template <class T>
DR_EVERYWHERE void rank_fit_range_with(const typename T::bits* values, uint64_t n, typename T::bits* range) {
  typename T::bits low = T::magnitude_mask, high = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const auto m = static_cast<typename T::bits>(values[i] & T::magnitude_mask);
    low = m < low ? m : low;
    high = m > high ? m : high;
  }
  range[0] = low;
  range[1] = high;
}
template <class T>
void rank_fit_range_scalar(const typename T::bits* values, uint64_t n, typename T::bits* range) {
  rank_fit_range_with<T>(values, n, range);
}

// The lowest `bits` of all bytes of a word.
constexpr uint64_t rank_fit_of_bytes(unsigned bits) { return 0x0101010101010101 * low_mask(bits); }

template <class T>
void rank_fit_range_avx2(const typename T::bits* values, uint64_t n, typename T::bits* range);
template <class T>
void rank_fit_encode_avx2(const typename T::bits* values, const rank_fit_layout& l, const uint32_t* threshold,
                          uint8_t* out);
template <class T>
void rank_fit_decode_avx2(const uint8_t* in, const rank_fit_layout& l, const typename T::bits* level,
                          typename T::bits* out);
template <class T>
void rank_fit_encode_avx512(const typename T::bits* values, const rank_fit_layout& l, const uint32_t* threshold,
                            uint8_t* out);
template <class T>
void rank_fit_decode_avx512(const uint8_t* in, const rank_fit_layout& l, const typename T::bits* level,
                            typename T::bits* out);

template <class T>
inline constexpr cpu_table<decltype(&rank_fit_range_scalar<T>)> rank_fit_range{rank_fit_range_scalar<T>,
                                                                               on_x86(rank_fit_range_avx2<T>)};
template <class T>
inline constexpr cpu_table<decltype(&rank_fit_encode_scalar<T>)> rank_fit_encode{
    rank_fit_encode_scalar<T>, on_x86(rank_fit_encode_avx2<T>), on_x86(rank_fit_encode_avx512<T>)};
template <class T>
inline constexpr cpu_table<decltype(&rank_fit_decode_scalar<T>)> rank_fit_decode{
    rank_fit_decode_scalar<T>, on_x86(rank_fit_decode_avx2<T>), on_x86(rank_fit_decode_avx512<T>)};

}  // namespace dr
