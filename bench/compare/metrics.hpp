// What compression did to a tensor, in numbers. g is the dense tensor, s what the sparsifier kept of it, ŝ what
// decode yields. Sums are doubles; 0/0 is 0, what is undefined or not finite is NaN (null in a report).
#pragma once

#include <limits>
#include <span>

#include "inputs.hpp"

namespace dr::compare {

inline constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

struct distortion {
  uint64_t missed;            // of s's support, what is not in ŝ's
  uint64_t false_positives;   // of ŝ's, what is not in s's
  double index_recall;        // share of s's support that is in ŝ's
  double relative_l2_error;   // ‖s − ŝ‖ / ‖s‖
  double max_relative_error;  // max |s − ŝ| / max |s|
  double cosine_similarity;   // of g and ŝ
  double contraction;         // ‖g − ŝ‖² / ‖g‖²
  double gradient_energy;     // ‖g‖²
  double kept_energy;         // ‖s‖²
};

// kept, support [ascending]: where s and ŝ have an element. decoded: ŝ, dense, of g's type.
distortion measure_distortion(const tensor& g, std::span<const uint64_t> kept, std::span<const std::byte> decoded,
                              std::span<const uint64_t> support);

// log2 C(d, r) / r: no code for r of d positions, all equally likely, is shorter on average. 0 for r = 0 and r = d.
double index_bound_bits(uint64_t d, uint64_t r);

double quotient(double numerator, double denominator);  // 0/0 is 0, x/0 is NaN

struct timing {
  double median, spread;  // spread: (q75 − q25) / median
};
timing summarize(std::vector<double> samples);

}  // namespace dr::compare
