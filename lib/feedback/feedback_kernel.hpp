// The arithmetic of feedback and the header of its state, for host and device (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// What feedback keeps of a tensor. The numbers are in states and never change their meaning.
enum class feedback_kind : uint32_t {
  residual = 0,   // m: the part that was not sent
  efsignsgd = 1,  // the same, and the learning rate of its step, f64, behind it
  dgc = 2,        // v, the velocity that was not sent; behind it u, the momentum
  momentum = 3    // m: an average of gradients, from which nothing is taken
};
inline constexpr uint32_t feedback_kinds = 4;

// A state is 16 bytes of header, then f32[elements], then what its kind has more. Zeroed memory is a fresh one.
struct residual_state {
  uint32_t magic, kind;
  uint64_t elements;

  static constexpr uint32_t magic_value = 0x52537244;  // "DrSR"

  DR_HD bool is_fresh() const { return magic == 0 && kind == 0 && elements == 0; }
  DR_HD bool is_of(uint32_t wanted_magic, uint32_t wanted_kind) const {
    return magic == wanted_magic && kind == wanted_kind;
  }
};
static_assert(sizeof(residual_state) == 16);

// gamma · g + beta · m in f32, each product rounded.
DR_HD inline float accumulated(float gamma, float g, float beta, float m) {
  const float a = gamma * g, b = beta * m;
  return computed(a + b);
}

DR_HD inline bool is_finite_residual(float x) { return is_finite<f32_type>(std::bit_cast<uint32_t>(x)); }

// The residual after `sent` was sent; 0 and `unfinite` where that is not finite, so that it does not poison later steps.
DR_HD inline float remaining(float acc, float sent, bool& unfinite) {
  const float rest = acc - sent;
  const bool finite = is_finite_residual(rest);
  unfinite |= !finite;
  return finite ? rest : 0;
}

}  // namespace dr
