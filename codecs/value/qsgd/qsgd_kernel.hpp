// Stochastic uniform quantisation of a bucket against its L2 norm (QSGD, Alistarh et al. 2017; layout: SPEC.md).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "primitive/rng.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

DR_HD constexpr unsigned qsgd_code_bits(uint64_t levels) { return 1 + ceil_log2(levels + 1); }

// The payload of n values: norms, then codes.
struct qsgd_layout {
  uint32_t levels;
  unsigned code_bits;
  uint64_t bucket, n, buckets, norms_size, size;

  DR_HD constexpr qsgd_layout(uint64_t levels, uint64_t bucket, uint64_t n)
      : levels(static_cast<uint32_t>(levels)),
        code_bits(qsgd_code_bits(levels)),
        bucket(bucket),
        n(n),
        buckets(ceil_div(n, bucket)),
        norms_size(4 * buckets),
        size(norms_size + ceil_div(n * code_bits, 8)) {}
};

template <class T>
DR_HD double qsgd_square(typename T::bits value) {
  const double v = T::to_f32(value);
  return v * v;
}

template <class T>
DR_HD float qsgd_norm_of(double squares) {
  const double norm = std::sqrt(squares);
  return static_cast<float>(norm > T::largest ? double{T::largest} : norm);
}

template <class T>
float qsgd_norm(const typename T::bits* values, uint64_t n) {
  return qsgd_norm_of<T>(tree_sum(n, [&](uint64_t i) { return qsgd_square<T>(values[i]); }));
}

// sign + 2 · level
DR_HD inline uint32_t qsgd_code(float value, float norm, uint32_t levels, uint64_t drawn) {
  if (!(norm > 0)) return 0;
  const double scaled =
      static_cast<double>(levels) * static_cast<double>(value < 0 ? -value : value) / static_cast<double>(norm);
  const double level = scaled + unit_interval(drawn);
  const uint32_t whole = level >= levels ? levels : static_cast<uint32_t>(level);
  return whole ? 2 * whole + (value < 0) : 0;
}

DR_HD inline double qsgd_value(uint32_t code, float norm, uint32_t levels) {
  const double v = static_cast<double>(norm) * static_cast<double>(code >> 1) / static_cast<double>(levels);
  return code & 1 ? -v : v;
}

// qsgd_value to the bit, without a division: `inverse` is 1 / levels, rounded, and one remainder corrects the quotient
// (Markstein 1990). That is exact here, because the product of an f32 and 16 bits is far from the ends of f64's range.
DR_HD inline double qsgd_value_by(double inverse, uint32_t code, float norm, uint32_t levels) {
  const double a = static_cast<double>(norm) * static_cast<double>(code >> 1), q = a * inverse;
  const double v = std::fma(std::fma(-q, static_cast<double>(levels), a), inverse, q);
  return code & 1 ? -v : v;
}

}  // namespace dr
