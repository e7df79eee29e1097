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

// f64 that orthonormalise needs.
constexpr uint64_t orthonormal_room(uint64_t n, uint32_t r) { return 2 * n * r + 2 * r; }

// Replaces the columns by the orthonormal ones of a QR decomposition (Householder reflections; Golub and Van Loan,
// 5.2), up to signs. They span at least what the columns spanned: a column that depends on those before it, or is zero,
// becomes some unit vector that is orthogonal to all others. Finite for finite input: it is computed in f64, where no
// square of an f32 overflows. One thread, scalar, one order of sums: the same bits everywhere.
//   room [orthonormal_room(n, r)]
void orthonormalise(const tall_matrix& m, double* room);

}  // namespace dr
