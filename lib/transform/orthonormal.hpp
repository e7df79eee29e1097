// Orthonormal columns of a tall matrix.
#pragma once

#include <cstdint>

namespace dr {

// A matrix [n][r], r <= n, whose element (i, c) is at[i * row + c * column].
struct tall_matrix {
  float* at;
  uint64_t n, row, column;
  uint32_t r;
};

// The number of f64 of scratch for orthonormalise.
constexpr uint64_t orthonormal_scratch(uint64_t n, uint32_t r) { return 2 * n * r + 2 * r; }

// Replaces the columns by the orthonormal ones of a QR decomposition (Householder reflections; Golub and Van Loan,
// 5.2), up to signs. Their span includes that of the old columns: a column that depends on those before it, or is zero,
// becomes a unit vector orthogonal to all others. Finite for finite input, because it is computed in f64, where no
// square of an f32 overflows. One thread, scalar, one order of sums: the same bits everywhere.
//   scratch [orthonormal_scratch(n, r)]
void orthonormalise(const tall_matrix& m, double* scratch);

}  // namespace dr
