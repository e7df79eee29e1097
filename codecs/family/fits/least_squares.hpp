// Small systems of normal equations.
#pragma once

#include <cmath>

#include "core/host_device.hpp"

namespace dr {

// Solves A x = y for the lower triangle of a symmetric, positive A of n <= N rows (Cholesky), in place. A pivot that is
// not positive counts as 1: the result is then an estimate, which the caller must check.
template <unsigned N>
DR_HD void solve_normal(unsigned n, double (&a)[N][N], double* y) {
  for (unsigned i = 0; i < n; ++i) {
    for (unsigned j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (unsigned k = 0; k < j; ++k) sum = sum - a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(sum > 0 ? sum : 1) : sum / a[j][j];
    }
    for (unsigned k = 0; k < i; ++k) y[i] = y[i] - a[i][k] * y[k];
    y[i] = y[i] / a[i][i];
  }
  for (unsigned i = n; i-- > 0;) {
    for (unsigned k = i + 1; k < n; ++k) y[i] = y[i] - a[k][i] * y[k];
    y[i] = y[i] / a[i][i];
  }
}

}  // namespace dr
