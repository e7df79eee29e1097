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

// Least squares of relative errors, so that small sizes count as much as large ones. For each number of smallest sizes
// that the floor may be the cost of, a line is fitted to the others; the best pair wins. Without a floor of its own,
// the floor is base, or the smallest sample where base is negative. per_unit is never negative. A size counts as no
// dearer than a larger one: what disturbs a measurement makes it longer. r2 is of the samples as they are. (HiPress
// has cost curves of this form, from which its SeCoPa plans: Bai et al., SOSP 2021; its README fits them by least
// squares.)
//   samples  ascending sizes, values above 0; those of one size give their cost to smaller sizes, and to larger ones in proportion
affine fit_affine(std::span<const sample> samples);

// Counts what a machine that does other things, too, leaves behind: fits whose r2 is below 0.9, and medians whose
// quartiles are more than 30 % of them apart.
class disturbance {
 public:
  void add(const std::string& name, const affine& fit, std::span<const sample> samples);
  std::string note() const;  // "": none

 private:
  size_t fits_ = 0, poor_ = 0, medians_ = 0, wide_ = 0;
  double least_r2_ = 1, most_spread_ = 0;
  std::string poorest_, widest_;
};

// Elements of the tensors of 8 ranks, cut from so many, that show how frames of sums grow; no rank has another's. 0: they
// are too few to tell.
uint64_t growth_size(uint64_t available, uint64_t largest);

}  // namespace dr::calibrate
