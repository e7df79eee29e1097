// Error feedback: the part that is not sent is kept for the next step (Seide et al. 2014; Stich et al. 2018).
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "feedback/feedback_kernel.hpp"
#include "primitive/cpu.hpp"

namespace dr {

constexpr uint64_t residual_size(uint64_t elements) { return sizeof(residual_state) + 4 * elements; }

// ARGUMENT if it is too small, misaligned, or the state of something else. A state on a device is not read.
dr_status check_residual(const void* state, uint64_t state_size, uint64_t elements, bool on_device, dr_error& error);

// The header of a state of whatever size; `elements` is 0 of a fresh one. ARGUMENT: NULL, misaligned, no state, or too
// short for what it states.
dr_status read_state(const void* state, uint64_t state_size, residual_state& head, dr_error& error);

inline float* residual_of(void* state) {
  return reinterpret_cast<float*>(static_cast<char*>(state) + sizeof(residual_state));
}

inline const float* residual_of(const void* state) {
  return reinterpret_cast<const float*>(static_cast<const char*>(state) + sizeof(residual_state));
}

// The L2 norm of n values, whose squares are added up in f64: eight sums, each of every eighth, then those in order.
double residual_norm(const float* m, uint64_t n);

// m[i] = gamma · g[i] + beta · m[i] of n values, each product rounded, by an instruction set; undo[i], unless
// nullptr: the old m[i]. It goes past the caches if it `streams`: then fence_streams before another thread reads it.
using advance_fn = void (*)(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool streams);
advance_fn advance_at(cpu_level level, uint32_t dtype);

// acc = gamma · g + beta · m, in f32, each product rounded. Sparse: g is [n rows] at ascending `indices`, else indices
// is nullptr.
void accumulate(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float beta,
                float gamma, const float* m, uint64_t elements, float* acc);

// acc in the tensor's type; finite values stay finite.
void round_values(uint32_t dtype, const float* acc, uint64_t elements, void* out);

// acc[support[i] - first] -= sent value i; support nullptr: i. 0 where either is not finite, so that nothing poisons
// later steps.
void subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc, uint32_t first = 0);

// As subtract_sent of f32 that arrive as they are, from all of which nothing remains; magnitudes from `taken_from` on
// have left before.
void clear_sent(const uint32_t* support, const void* values, uint64_t count, uint32_t taken_from, float* acc,
                uint32_t first);

}  // namespace dr
