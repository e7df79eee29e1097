// The loops of PowerSGD over a gradient and its residual. A sum has one order, and no product is contracted into a sum,
// so every instruction set computes the same bits.
#pragma once

#include <cstdint>

#include "primitive/cpu.hpp"

namespace dr {

// A matrix M = gamma · gradient + beta · residual, row-major [rows][columns], which is computed where it is read.
// Without feedback (residual is nullptr) M is the gradient.
struct lowrank_matrix {
  const float* gradient;
  float* residual;
  float beta, gamma;
  uint64_t columns;
  uint32_t rank;
};

struct lowrank_kernels {
  // p [rows][rank] = M q for rows [first, last), with q [rank][columns]. Element j of a row is added to sum j mod 16;
  // the sixteen sums are added as a tree.
  void (*project)(const lowrank_matrix& m, const float* q, float* p, uint64_t first, uint64_t last);
  // q [rank][columns] = Mᵀ p for columns [first, last), summed from row 0 on.
  void (*gather)(const lowrank_matrix& m, const float* p, uint64_t rows, float* q, uint64_t first, uint64_t last);
  // Rows [first, last): out = scale · p q, and residual = M − p q. `out` may be the gradient.
  void (*expand)(const lowrank_matrix& m, const float* p, const float* q, float scale, float* out, uint64_t first,
                 uint64_t last);
};

extern const lowrank_kernels lowrank_scalar;
#if DR_X86
extern const lowrank_kernels lowrank_avx2, lowrank_avx512;
#elif DR_NEON
extern const lowrank_kernels lowrank_neon;
#endif

inline const lowrank_kernels& lowrank_at(cpu_level level) {
#if DR_X86
  static constexpr cpu_table<const lowrank_kernels*> table{&lowrank_scalar, &lowrank_avx2, &lowrank_avx512};
#elif DR_NEON
  static constexpr cpu_table<const lowrank_kernels*> table{&lowrank_scalar, nullptr, nullptr, &lowrank_neon};
#else
  static constexpr cpu_table<const lowrank_kernels*> table{&lowrank_scalar};
#endif
  return *table.at(level);
}

}  // namespace dr
