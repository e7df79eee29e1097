// The arithmetic of feedback and the header of its state, for host and device (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// A state is 16 bytes of header, then the arrays of its kind (feedback_kind.hpp). Zeroed memory is a fresh state.
struct residual_state {
  uint32_t magic, kind;
  uint64_t elements;

  static constexpr uint32_t magic_value = 0x52537244;  // "DrSR"

  DR_HD bool is_fresh() const { return magic == 0 && kind == 0 && elements == 0; }
  DR_HD bool is_of(uint32_t number) const { return magic == magic_value && kind == number; }
};
static_assert(sizeof(residual_state) == 16);

// gamma · g + beta · m in f32, each product rounded.
DR_HD inline float accumulated(float gamma, float g, float beta, float m) {
  const float a = gamma * g, b = beta * m;
  return computed(a + b);
}

DR_HD inline bool is_finite_residual(float x) { return is_finite<f32_type>(std::bit_cast<uint32_t>(x)); }

// The residual after `sent` was sent. If it is not finite: 0, and `unfinite` is set, so that later steps are not
// affected.
DR_HD inline float remaining(float acc, float sent, bool& unfinite) {
  const float rest = acc - sent;
  const bool finite = is_finite_residual(rest);
  unfinite |= !finite;
  return finite ? rest : 0;
}

}  // namespace dr
