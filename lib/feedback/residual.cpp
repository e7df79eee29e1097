#include "feedback/residual.hpp"

#include <cinttypes>
#include <cmath>
#include <cstring>

#include "primitive/value_type.hpp"

namespace dr {

dr_status check_residual(const void* state, uint64_t state_size, uint64_t elements, bool on_device, dr_error& error) {
  if (!state)
    return fail(error, DR_E_ARGUMENT,
                "state: the plan keeps feedback, so the tensor needs a state of %" PRIu64 " bytes (dr_state_size)",
                residual_size(elements));
  if (reinterpret_cast<uintptr_t>(state) % 8) return fail(error, DR_E_ARGUMENT, "state: not aligned to 8 bytes");
  if (state_size < residual_size(elements))
    return fail(error, DR_E_ARGUMENT, "state: %" PRIu64 " bytes, but %" PRIu64 " are needed", state_size,
                residual_size(elements));
  if (on_device) return DR_OK;  // its header is judged there
  residual_state head;
  std::memcpy(&head, state, sizeof head);
  const bool is_fresh = head.magic == 0 && head.version == 0 && head.elements == 0;
  if (is_fresh) return DR_OK;
  if (head.magic != residual_state::magic_value || head.version != residual_state::version_value)
    return fail(error, DR_E_ARGUMENT, "state: not a residual of this version (a fresh state is all zeros)");
  if (head.elements != elements)
    return fail(error, DR_E_ARGUMENT, "state: of a tensor of %" PRIu64 " elements, not %" PRIu64, head.elements,
                elements);
  return DR_OK;
}

void accumulate(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float beta,
                float gamma, const float* m, uint64_t elements, float* acc) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(g);
    if (!indices) {
      for (uint64_t i = 0; i < elements; ++i) acc[i] = gamma * T::to_f32(v[i]) + beta * m[i];
      return;
    }
    for (uint64_t i = 0; i < elements; ++i) acc[i] = beta * m[i];
    for (uint64_t i = 0; i < rows; ++i)
      for (uint32_t w = 0; w < width; ++w) acc[indices[i] * width + w] += gamma * T::to_f32(v[i * width + w]);
  });
}

void round_values(uint32_t dtype, const float* acc, uint64_t elements, void* out) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    auto* to = static_cast<typename T::bits*>(out);
    for (uint64_t i = 0; i < elements; ++i) {
      const double v = double{acc[i]};
      to[i] = T::from_f64(std::isinf(v) ? v : saturate<T>(v));
    }
  });
}

void subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    for (uint64_t i = 0; i < count; ++i)
      for (uint32_t w = 0; w < width; ++w) {
        float& a = acc[uint64_t{support[i]} * width + w];
        const float rest = a - T::to_f32(v[i * width + w]);
        a = std::isfinite(rest) ? rest : 0;
      }
  });
}

}  // namespace dr
