// Error feedback: what the receiver will not see is kept for the next step (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "core/error.hpp"

namespace dr {

// A state is 16 bytes of header, then f32[elements]. Zeroed memory is a fresh one.
struct residual_state {
  uint32_t magic, version;
  uint64_t elements;

  static constexpr uint32_t magic_value = 0x52537244, version_value = 0;  // "DrSR"
};
static_assert(sizeof(residual_state) == 16);

constexpr uint64_t residual_size(uint64_t elements) { return sizeof(residual_state) + 4 * elements; }

// ARGUMENT if it is too small, misaligned, or the state of something else. A state on a device is not read.
dr_status check_residual(const void* state, uint64_t state_size, uint64_t elements, bool on_device, dr_error& error);
inline float* residual_of(void* state) {
  return reinterpret_cast<float*>(static_cast<char*>(state) + sizeof(residual_state));
}

// acc = gamma · g + beta · m, in f32, each product rounded. Sparse: g is [n rows] at ascending `indices`, else indices is nullptr.
void accumulate(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float beta,
                float gamma, const float* m, uint64_t elements, float* acc);

// acc in the tensor's type; what is finite stays finite.
void round_values(uint32_t dtype, const float* acc, uint64_t elements, void* out);

// acc[first + support[i]] -= sent value i; 0 where either is not finite, so that nothing poisons later steps.
void subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc);

}  // namespace dr
