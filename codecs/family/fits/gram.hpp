// Discrete Chebyshev (Gram) polynomials: orthogonal on n equally spaced points, so that least squares need no solver.
// P_0 = 1, P_1 = u, P_{j+1} = u P_j - B_j P_{j-1}; the order of every operation is part of the formats that use them.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "primitive/value_type.hpp"

namespace dr {

DR_HD inline double gram_b(uint64_t points, unsigned j) {
  const double square = static_cast<double>(j) * static_cast<double>(j), n = static_cast<double>(points);
  return (square * (1 - square / (n * n))) / (4 * square - 1);
}

// Where point x of n lies in [-1, 1].
DR_HD inline double gram_u(uint64_t x, uint64_t points) {
  return (2 * static_cast<double>(x) - static_cast<double>(points - 1)) / static_cast<double>(points);
}

// P_{j+1} of P_j = p and P_{j-1} = before. With b = B_0 = 0 and before = 0, P_1 of P_0 = 1 is u.
DR_HD inline double gram_next(double u, double b, double p, double before) { return u * p - b * before; }

// P_0 … P_{count-1} at point x of n.
DR_HD inline void gram_basis(uint64_t x, uint64_t points, unsigned count, const double* b, double* p) {
  const double u = gram_u(x, points);
  p[0] = 1;
  if (count > 1) p[1] = u;
  for (unsigned j = 1; j + 1 < count; ++j) p[j + 1] = gram_next(u, b[j], p[j], p[j - 1]);
}

// c_j of Σ y·P_j, rounded to type T.
template <class T>
DR_HD typename T::bits gram_coefficient(double sum, uint64_t points, unsigned j, const double* b) {
  double norm = static_cast<double>(points);
  for (unsigned i = 1; i <= j; ++i) norm = norm * b[i];
  return T::from_f64(saturate<T>(sum / norm));
}

// The curve at point x of n; b: B_1 … B_{count-1}.
DR_HD inline double gram_at(uint64_t x, uint64_t points, unsigned count, const double* b, const float* coefficients) {
  const double u = gram_u(x, points);
  double y = static_cast<double>(coefficients[0]), before = 1, p = u;
  for (unsigned j = 1; j < count; ++j) {
    y = y + static_cast<double>(coefficients[j]) * p;
    const double next = gram_next(u, b[j], p, before);
    before = p;
    p = next;
  }
  return y;
}

}  // namespace dr
