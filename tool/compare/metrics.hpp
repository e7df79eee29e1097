// The errors of a compressed tensor. g is the dense tensor, s the values that the sparsifier selected, ŝ the decoded
// tensor. Sums are doubles; 0/0 is 0; an undefined or non-finite result is NaN (null in a report).
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "tool/read/inputs.hpp"

namespace dr::compare {

inline constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

struct distortion {
  uint64_t missed;            // positions of s's support that ŝ's lacks
  uint64_t false_positives;   // positions of ŝ's support that s's lacks
  double index_recall;        // share of s's support that is in ŝ's; 1 if s is empty
  double energy_recall;       // ‖g‖² on ŝ's support / ‖g‖²; 1 if g is zero
  double relative_l2_error;   // ‖s − ŝ‖ / ‖s‖
  double max_relative_error;  // max |s − ŝ| / max |s|
  double cosine_similarity;   // of g and ŝ
  double contraction;         // ‖g − ŝ‖² / ‖g‖²
  double gradient_energy;     // ‖g‖²
  double selected_energy;     // ‖s‖²
};

// Sums over the tensors of a frame, as if joined.
class distortion_sum {
 public:
  // selected, support [ascending]: positions of s and ŝ. decoded: ŝ, dense, of g's type.
  void add(const tensor& g, std::span<const uint64_t> selected, std::span<const std::byte> decoded,
           std::span<const uint64_t> support);
  distortion result() const;

 private:
  uint64_t selected_ = 0, support_ = 0, both_ = 0;
  double gg_ = 0, hh_ = 0, gh_ = 0, ss_ = 0, s_error_ = 0, g_error_ = 0, s_max_ = 0, error_max_ = 0, arrived_ = 0;
};

// Of one tensor.
distortion measure_distortion(const tensor& g, std::span<const uint64_t> selected, std::span<const std::byte> decoded,
                              std::span<const uint64_t> support);

// Σ (γ x − y) over the steps of a training, in f64, over the elements of all tensors in order; x and y have one type.
class running_sum {
 public:
  // first: position of the tensor's first element among all. y: empty, or as long as x.
  void add(dtype type, double gamma, std::span<const std::byte> x, std::span<const std::byte> y, uint64_t first);
  double norm() const;

 private:
  std::vector<double> sum_;
};

// log2 C(d, r) / r: no code for r of d positions, all equally likely, is shorter on average. 0 for r = 0 and r = d.
double index_bound_bits(uint64_t d, uint64_t r);

double quotient(double numerator, double denominator);  // 0/0 is 0, x/0 is NaN

struct timing {
  double median = undefined, spread = undefined;  // spread: (q75 − q25) / median
};
timing summarize(std::vector<double> samples);

}  // namespace dr::compare
