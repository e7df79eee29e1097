// The arithmetic of feedback and the header of its state, for host and device (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// A state is 16 bytes of header, then f32[elements]. Zeroed memory is a fresh one.
struct residual_state {
  uint32_t magic, version;
  uint64_t elements;

  static constexpr uint32_t magic_value = 0x52537244, version_value = 0;  // "DrSR"

  DR_HD bool is_fresh() const { return magic == 0 && version == 0 && elements == 0; }
  DR_HD bool has_version(uint32_t wanted_magic = magic_value, uint32_t wanted_version = version_value) const {
    return magic == wanted_magic && version == wanted_version;
  }
};
static_assert(sizeof(residual_state) == 16);

// gamma · g + beta · m in f32, each product rounded.
DR_HD inline float accumulated(float gamma, float g, float beta, float m) {
  const float a = gamma * g, b = beta * m;
  return computed(a + b);
}

DR_HD inline bool is_finite_residual(float x) { return is_finite<f32_type>(std::bit_cast<uint32_t>(x)); }
// The residual after `sent` was sent; 0 if that is not finite, so that it does not poison later steps.
DR_HD inline float remaining(float acc, float sent) {
  const float rest = acc - sent;
  return is_finite_residual(rest) ? rest : 0;
}

}  // namespace dr
