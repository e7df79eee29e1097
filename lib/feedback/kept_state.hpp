// The state of feedback, which is the caller's memory: its parts, and whether it is sound.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "feedback/feedback_kernel.hpp"

namespace dr {

// As plans name it; "?" of none.
const char* feedback_name(feedback_kind kind);

constexpr uint64_t kept_size(feedback_kind kind, uint64_t elements) {
  return sizeof(residual_state) + (kind == feedback_kind::dgc ? 8 : 4) * elements +
         (kind == feedback_kind::efsignsgd ? sizeof(double) : 0);
}
// Whether a part of the gradient stays in it that was not sent; a frame that never arrived is added to that.
constexpr bool keeps_residual(feedback_kind kind) { return kind != feedback_kind::momentum; }

inline residual_state head_of(feedback_kind kind, uint64_t elements) {
  return {residual_state::magic_value, static_cast<uint32_t>(kind), elements};
}
inline feedback_kind kind_of(const residual_state& head) { return static_cast<feedback_kind>(head.kind); }

// ARGUMENT if it is too small, misaligned, or the state of something else. A state on a device is not read.
dr_status check_state(const void* state, uint64_t state_size, feedback_kind kind, uint64_t elements, bool on_device,
                      dr_error& error);

// The header of a state of whatever size; `elements` is 0 of a fresh one. ARGUMENT: NULL, misaligned, no state, or too
// short for what it states.
dr_status read_state(const void* state, uint64_t state_size, residual_state& head, dr_error& error);

// Gives a large fresh state its pages at once; no byte changes. Where nobody has touched it (calloc), each page would
// fault twice otherwise, when it is read and when it is written.
void ready_fresh(void* state, uint64_t size);

// The residual; of `momentum`, m.
inline float* residual_of(void* state) {
  return reinterpret_cast<float*>(static_cast<char*>(state) + sizeof(residual_state));
}
inline const float* residual_of(const void* state) {
  return reinterpret_cast<const float*>(static_cast<const char*>(state) + sizeof(residual_state));
}
// u of `dgc`.
inline float* velocity_of(void* state, uint64_t elements) { return residual_of(state) + elements; }
inline const float* velocity_of(const void* state, uint64_t elements) { return residual_of(state) + elements; }

// The learning rate of `efsignsgd`; 0 of a fresh state. (Of an odd number of elements it is not aligned.)
double learning_rate_of(const void* state, uint64_t elements);
void set_learning_rate(void* state, uint64_t elements, double rate);

}  // namespace dr
