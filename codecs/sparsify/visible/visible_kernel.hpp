// Which values would change weights of 16 bits (SPEC.md).
#pragma once

#include <cstdint>

#include "primitive/cpu.hpp"
#include "primitive/half.hpp"
#include "primitive/value_type.hpp"

namespace dr {

struct visible_rule {
  float rate;
  bool f16;  // else bf16
};

// out[i] = values[i] if it is kept, else 0. Plain, for twins to inline.
template <class T, bool f16>
DR_EVERYWHERE void keep_visible_with(const typename T::bits* values, const typename T::bits* weights, uint32_t n,
                                     float rate, typename T::bits* out) {
  for (uint32_t i = 0; i < n; ++i) {
    const float v = T::to_f32(values[i]), w = T::to_f32(weights[i]), moved = w - rate * v;
    const uint32_t before = f16 ? f32_to_f16(w) : f32_to_bf16(w), after = f16 ? f32_to_f16(moved) : f32_to_bf16(moved);
    const bool kept = (before != after && ((before | after) & 0x7fff)) || magnitude<T>(values[i]) >= T::infinity;
    out[i] = kept ? values[i] : typename T::bits{0};
  }
}

template <class T>
DR_EVERYWHERE void keep_visible_as(visible_rule rule, const void* values, const void* weights, uint32_t n, void* out) {
  using bits = typename T::bits;
  const auto *v = static_cast<const bits*>(values), *w = static_cast<const bits*>(weights);
  if (rule.f16)
    keep_visible_with<T, true>(v, w, n, rule.rate, static_cast<bits*>(out));
  else
    keep_visible_with<T, false>(v, w, n, rule.rate, static_cast<bits*>(out));
}

DR_EVERYWHERE void keep_visible_any(uint32_t dtype, visible_rule rule, const void* values, const void* weights,
                                    uint32_t n, void* out) {
  if (dtype == DR_F32)
    keep_visible_as<f32_type>(rule, values, weights, n, out);
  else if (dtype == DR_F16)
    keep_visible_as<f16_type>(rule, values, weights, n, out);
  else
    keep_visible_as<bf16_type>(rule, values, weights, n, out);
}

inline void keep_visible_scalar(uint32_t dtype, visible_rule rule, const void* values, const void* weights, uint32_t n,
                                void* out) {
  keep_visible_any(dtype, rule, values, weights, n, out);
}
void keep_visible_avx2(uint32_t dtype, visible_rule rule, const void* values, const void* weights, uint32_t n,
                       void* out);
void keep_visible_avx512(uint32_t dtype, visible_rule rule, const void* values, const void* weights, uint32_t n,
                         void* out);

inline constexpr cpu_table<decltype(&keep_visible_scalar)> keep_visible{keep_visible_scalar, on_x86(keep_visible_avx2),
                                                                        on_x86(keep_visible_avx512)};

}  // namespace dr
