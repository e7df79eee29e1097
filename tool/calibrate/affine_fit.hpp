// A cost as a function of size, fitted to measurements: cost(n) = max(floor, base + per_unit n).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dr::calibrate {

struct sample {
  uint64_t size;         // elements or bytes
  double value, spread;  // the median, and (q75 - q25) / median
};

// Units are those of `value`, per_unit's per unit of size.
struct affine {
  double floor = 0, base = 0, per_unit = 0;
  double r2 = 0;  // of relative errors: 1 - Σ ((fit - y) / y)² / Σ ((c - y) / y)², where c is the best constant
  double at(double size) const;
};

// Least squares of relative errors, so that small sizes count as much as large ones. For every number of smallest sizes
// that may cost the floor, a line is fitted to the others; the best pair wins. Without a separate floor, the floor is base,
// or the smallest sample if base is negative. per_unit is never negative. A size counts as at most as expensive as a larger
// one, since disturbances only lengthen a measurement. r2 is that of the raw samples. (HiPress
// has cost curves of this form, from which its SeCoPa plans: Bai et al., SOSP 2021; its README fits them by least
// squares.)
//   samples  ascending sizes, values above 0; with one size, smaller sizes have its cost and larger ones scale it
affine fit_affine(std::span<const sample> samples);

// Counts signs of a busy machine: fits with r2 below 0.9, and medians whose quartiles are more than 30 % apart.
class disturbance {
 public:
  void add(const std::string& name, const affine& fit, std::span<const sample> samples);
  std::string note() const;  // "": none

 private:
  size_t fits_ = 0, poor_ = 0, medians_ = 0, wide_ = 0;
  double min_r2_ = 1, max_spread_ = 0;
  std::string poorest_, widest_;
};

// Elements per rank when `available` are cut into disjoint tensors of 8 ranks, to measure how frames of sums grow. 0: too
// few.
uint64_t growth_size(uint64_t available, uint64_t largest);

}  // namespace dr::calibrate
