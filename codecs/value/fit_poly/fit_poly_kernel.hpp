// A sorted curve as pieces of discrete Chebyshev (Gram) polynomials (layout, segments and arithmetic: SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned fit_poly_degree_max = 9;
inline constexpr uint64_t fit_poly_points_min = 31;  // of a piece that is not the remainder

// Parts of a side, as in the published GPU code: fine pieces where the curve bends most.
inline constexpr uint64_t fit_poly_parts[] = {5, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000};
inline constexpr unsigned fit_poly_parts_count = sizeof fit_poly_parts / sizeof *fit_poly_parts;
inline constexpr unsigned fit_poly_segments_max = 2 * (fit_poly_parts_count + 2);  // the remainder, the extreme value

// Lengths of the segments of a curve of n values, the first `positives` of one sign. Returns how many there are.
inline unsigned fit_poly_segments(uint64_t n, uint64_t positives, uint64_t* length) {
  unsigned count = 0;
  for (int side = 0; side < 2; ++side) {
    const uint64_t total = side == 0 ? positives : n - positives;
    if (total == 0) continue;
    // Towards the extreme: the remainder, pieces by decreasing length, the extreme value.
    uint64_t piece[fit_poly_parts_count + 2];
    unsigned pieces = 1;
    piece[0] = total;
    while (pieces <= fit_poly_parts_count && total / fit_poly_parts[pieces - 1] >= fit_poly_points_min) {
      piece[pieces] = total / fit_poly_parts[pieces - 1];
      piece[0] -= piece[pieces++];
    }
    if (total >= fit_poly_points_min) {
      --piece[pieces - 1];
      piece[pieces++] = 1;
    }
    for (unsigned i = 0; i < pieces; ++i) length[count++] = piece[side == 0 ? pieces - 1 - i : i];
  }
  return count;
}

DR_HD constexpr unsigned fit_poly_coefficients(uint64_t points, unsigned degree) {
  return points - 1 < degree ? static_cast<unsigned>(points) : degree + 1;
}

DR_HD inline double fit_poly_b(uint64_t points, unsigned j) {
  const double square = static_cast<double>(j) * static_cast<double>(j), n = static_cast<double>(points);
  return (square * (1 - square / (n * n))) / (4 * square - 1);
}

// P_0 … P_{count-1} at point x of n.
DR_HD inline void fit_poly_basis(uint64_t x, uint64_t points, unsigned count, const double* b, double* p) {
  const double u = (2 * static_cast<double>(x) - static_cast<double>(points - 1)) / static_cast<double>(points);
  p[0] = 1;
  if (count > 1) p[1] = u;
  for (unsigned j = 1; j + 1 < count; ++j) p[j + 1] = u * p[j] - b[j] * p[j - 1];
}

// Least squares of y(0 … points-1); coefficients [fit_poly_coefficients].
template <class F>
void fit_poly_fit(uint64_t points, unsigned degree, F&& y, float* coefficients) {
  const unsigned count = fit_poly_coefficients(points, degree);
  double b[fit_poly_degree_max + 1] = {}, p[fit_poly_degree_max + 1];
  for (unsigned j = 1; j < count; ++j) b[j] = fit_poly_b(points, j);
  double norm = static_cast<double>(points);
  for (unsigned j = 0; j < count; ++j) {
    if (j) norm = norm * b[j];
    const double sum = tree_sum(points, [&](uint64_t x) {
      fit_poly_basis(x, points, count, b, p);
      return y(x) * p[j];
    });
    coefficients[j] = static_cast<float>(saturate<f32_type>(sum / norm));
  }
}

// Calls each(x, y) for every point.
template <class F>
void fit_poly_eval(uint64_t points, unsigned degree, const float* coefficients, F&& each) {
  const unsigned count = fit_poly_coefficients(points, degree);
  double b[fit_poly_degree_max + 1] = {}, p[fit_poly_degree_max + 1];
  for (unsigned j = 1; j < count; ++j) b[j] = fit_poly_b(points, j);
  for (uint64_t x = 0; x < points; ++x) {
    fit_poly_basis(x, points, count, b, p);
    double y = static_cast<double>(coefficients[0]);
    for (unsigned j = 1; j < count; ++j) y = y + static_cast<double>(coefficients[j]) * p[j];
    each(x, y);
  }
}

// Ascending in this key is: sign clear first, then by descending value.
template <class T>
DR_HD constexpr uint32_t fit_poly_sort_key(typename T::bits b) {
  constexpr uint32_t sign = uint32_t{T::magnitude_mask} + 1;
  return b & sign ? b : T::magnitude_mask - b;
}

}  // namespace dr
