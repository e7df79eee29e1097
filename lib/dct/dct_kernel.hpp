// The discrete cosine transform (DCT-II, orthonormal) of runs and tiles whose sides are powers of two up to 64. A sum has
// one order, and no product is contracted into a sum, so every instruction set computes the same bits.
#pragma once

#include <cstdint>

#include "primitive/cpu.hpp"
#include "primitive/tile_form.hpp"

namespace dr {

inline constexpr uint32_t tile_side_max = 1u << log2_tile_max;
inline constexpr uint32_t runs_at_once = 16;

struct dct_kernels {
  // out [w][h]: the coefficients of a tile of h rows of w values, the rows `stride` apart.
  void (*forward)(const float* in, uint64_t stride, uint32_t h, uint32_t w, float* out);
  // out [h][w]: the tile of coefficients [w][h].
  void (*inverse)(const float* in, uint32_t h, uint32_t w, float* out);
  // The same of up to runs_at_once runs of n values, one behind the other.
  void (*forward_runs)(const float* in, uint32_t runs, uint32_t n, float* out);
  void (*inverse_runs)(const float* in, uint32_t runs, uint32_t n, float* out);
};

extern const dct_kernels dct_scalar;
#if DR_X86
extern const dct_kernels dct_avx2, dct_avx512;
#elif DR_NEON
extern const dct_kernels dct_neon;
#endif

inline const dct_kernels& dct_at(cpu_level level) {
#if DR_X86
  static constexpr cpu_table<const dct_kernels*> table{&dct_scalar, &dct_avx2, &dct_avx512};
#elif DR_NEON
  static constexpr cpu_table<const dct_kernels*> table{&dct_scalar, nullptr, nullptr, &dct_neon};
#else
  static constexpr cpu_table<const dct_kernels*> table{&dct_scalar};
#endif
  return *table.at(level);
}

// ---- Factors --------------------------------------------------------------------------------------------------------

// cos(π j / 128) for 0 <= j <= 64, by its series: no library's cosine decides a bit.
struct cosine_list {
  double of[65];
};
consteval cosine_list make_cosines() {
  constexpr double pi = 3.14159265358979323846;
  cosine_list out{};
  for (uint32_t j = 0; j <= 64; ++j) {
    const bool small = j <= 32;
    const double x = pi * (small ? j : 64 - j) / 128;
    double sum = small ? 1 : x, term = sum;
    for (int k = small ? 1 : 2; k < 24; k += 2) {
      term *= -x * x / (k * (k + 1));
      sum += term;
    }
    out.of[j] = sum;
  }
  return out;
}
inline constexpr cosine_list cosines = make_cosines();

// √(2/n) for n = 2^p.
consteval double norm_of(uint32_t n) {
  double norm = n == 1 ? 1.41421356237309504880 : 1;
  for (uint32_t p = n; p > 2; p /= 4) norm *= p == 4 ? 0.70710678118654752440 : 0.5;
  return norm;
}

// Of a DCT of N: for M = N, N/2, … 2 the factors [M/2][M/2] by which the differences of a half of M values become its
// odd coefficients, √(2/N) cos(π (2k+1)(2n+1) / 2M), which is symmetric in k and n; the last one is √(1/N).
template <uint32_t N>
struct dct_factor_list {
  float of[(N * N - 1) / 3 + 1];
};
template <uint32_t N>
consteval dct_factor_list<N> make_dct_factors() {
  dct_factor_list<N> out{};
  uint32_t at = 0;
  for (uint32_t M = N; M > 1; M /= 2)
    for (uint32_t k = 0; k < M / 2; ++k)
      for (uint32_t n = 0; n < M / 2; ++n) {
        const uint32_t j = (2 * k + 1) * (2 * n + 1) * (64 / M) % 256, from_pi = j > 128 ? 256 - j : j;
        const double c = from_pi > 64 ? -cosines.of[128 - from_pi] : cosines.of[from_pi];
        out.of[at++] = static_cast<float>(norm_of(N) * c);
      }
  out.of[at] = static_cast<float>(norm_of(N) * 0.70710678118654752440);
  return out;
}
template <uint32_t N>
inline constexpr dct_factor_list<N> dct_factors = make_dct_factors<N>();

}  // namespace dr
