// The search for the step of uniform_quant, and what decides that one magnitude is better (SPEC.md). The values are
// looked at elsewhere: this is the arithmetic between.
#pragma once

#include <cmath>
#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

inline constexpr int uniform_attempts_max = 12;
// Exponents of the largest magnitude with which every number below is normal.
inline constexpr uint32_t uniform_exponent_min = 67, uniform_exponent_max = 227;

// A power of two that brings magnitudes of this exponent to 1 … 2.
DR_HD inline float uniform_scale_of(uint32_t exponent) { return std::bit_cast<float>((254 - exponent) << 23); }

struct uniform_survey {
  float least, largest;
  double squares;  // Σ v²; of magnitudes whose exponents fit
  bool usual;      // they do
};

// The result of a step. `error`: a bound of the L2 error, not relative.
struct uniform_attempt {
  double error;
  double sum;  // Σ |v|, where no block is raw
  float base;
  bool levels, raw;  // some block is not raw, some is

  // Sums over blocks that are not raw: of g and g², their values and levels.
  DR_HD static uniform_attempt of(float least, float step, double first, double second, uint64_t counted,
                                  uint64_t units, uint64_t n) {
    const auto count = static_cast<double>(counted);
    const double mean = counted ? first / count : 0, off = second - first * mean;
    // Σ (g − mean)², plus the bound of 256 roundings of sums of f32 below 1.
    const double spread = (off > 0 ? off : 0) + count * 0x1p-16;
    return {step * std::sqrt(spread), double{least} * count + step * (static_cast<double>(units) + first + 0.5 * count),
            static_cast<float>(least + double{step} * (0.5 + mean)), counted > 0, counted < n};
  }
};

struct uniform_search {
  enum next : uint32_t { tries, judges, sends, sends_raw };  // judges: against one magnitude

  next then;
  bool last;  // the step is the one
  int attempts;
  double step, good_step;  // good_step: one that holds the promise, or 0
  double allowed;

  DR_HD static uniform_search of(const uniform_survey& of, uint64_t n, bool is_f32, double relative, unsigned bits) {
    uniform_search s{tries, false, 0, 0, 0, 0};
    if (of.least == of.largest) {
      s.then = sends;
    } else if (!of.usual) {
      s.then = sends_raw;
    } else if (bits) {
      // Rounded up, so that the largest magnitude has the highest level.
      const double levels = std::bit_cast<double>(uint64_t{1023 - bits} << 52) * (1 + 0x1p-20);
      s.step = (double{of.largest} - of.least) * levels;
      s.last = true;
    } else {
      constexpr double sqrt_12 = 3.4641016151377544;
      const double norm = std::sqrt(of.squares);
      // f32's roundings of x and of the value: 6 half units of the last place of a value. Those of the sums of squares:
      // 128.
      s.allowed = norm * (1 - 0x1p-16) * (relative - (is_f32 ? 0x1p-20 : 0));
      // If an error is uniform in ± step / 2 its squares' mean is step² / 12. Three standard deviations of that mean
      // below, where a second attempt costs more than it brings.
      const double count = static_cast<double>(n), margin = n > 32768 ? 1.34 / std::sqrt(count) + 4e-4 : 0;
      s.step = relative * sqrt_12 * norm / std::sqrt(count) * (1 - margin);
    }
    return s;
  }

  DR_HD void judge(const uniform_attempt& a) {
    const auto least_of = [](double x, double y) { return y < x ? y : x; };
    const int i = attempts++;
    if (!a.levels) {
      then = sends_raw;
    } else if (last) {
      then = judges;
    } else if (a.error <= allowed) {
      // If steps are so coarse that values crowd at a step's lower end, a larger step holds the promise, too.
      if (a.error > 0.97 * allowed || i >= 4) {
        then = judges;
        return;
      }
      good_step = step;
      step *= least_of(0.995 * allowed / a.error, 1.5);
    } else if (good_step > 0) {
      step = good_step;
      last = true;
    } else {
      step *= least_of(0.999 * allowed / a.error, i < uniform_attempts_max / 2 ? 1.0 : 0.5);
      if (attempts == uniform_attempts_max) then = sends_raw;
    }
  }
};

// Whether one magnitude surely has more error. a.error: as the type has it.
DR_HD inline bool uniform_surely_better(const uniform_survey& of, const uniform_attempt& a, uint64_t n) {
  // Sums of f32 are right to 2^-16 of them.
  const double error = a.error + std::sqrt(of.squares) * 0x1p-20,
               around = of.squares * (1 - 0x1p-12) - a.sum * (a.sum / static_cast<double>(n));
  return !a.raw && error * error < around;
}

}  // namespace dr
