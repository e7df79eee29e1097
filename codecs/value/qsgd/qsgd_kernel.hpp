// Stochastic uniform quantisation of a bucket against its L2 norm (QSGD, Alistarh et al. 2017; layout: SPEC.md).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "primitive/rng.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

constexpr unsigned qsgd_code_bits(uint64_t levels) { return 1 + ceil_log2(levels + 1); }

template <class T>
float qsgd_norm(const typename T::bits* values, uint64_t n) {
  const double squares = tree_sum(n, [&](uint64_t i) {
    const double v = T::to_f32(values[i]);
    return v * v;
  });
  const double norm = std::sqrt(squares);
  return static_cast<float>(norm > T::largest ? T::largest : norm);
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

}  // namespace dr
