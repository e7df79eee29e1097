// The state of feedback, in the caller's memory: its parts, and its validation.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "feedback/feedback_kernel.hpp"
#include "feedback/feedback_kind.hpp"

namespace dr {

inline uint64_t state_size_of(const feedback_kind& kind, uint64_t elements) {
  return sizeof(residual_state) + 4 * kind.arrays() * elements + (kind.rate ? sizeof(double) : 0);
}

inline residual_state head_of(const feedback_kind& kind, uint64_t elements) {
  return {residual_state::magic_value, kind.number(), elements};
}
// The kind of a sound state that is not fresh.
const feedback_kind& kind_of(const residual_state& head);

// ARGUMENT: it is too small, misaligned, or the state of another kind or tensor. A state on a device is not read.
dr_status check_state(const void* state, uint64_t state_size, const feedback_kind& kind, uint64_t elements,
                      bool on_device, dr_error& error);

// The header of a state of any size; `elements` is 0 in a fresh one. ARGUMENT: NULL, misaligned, not a state, or too
// short for its elements.
dr_status read_state(const void* state, uint64_t state_size, residual_state& head, dr_error& error);

// Maps the pages of a large fresh state at once; no byte changes. Otherwise a page of untouched memory (calloc) would
// fault twice, at the first read and at the first write.
void map_fresh(void* state, uint64_t size);

// The first array: the residual, or for a kind without one the momentum.
inline float* residual_of(void* state) {
  return reinterpret_cast<float*>(static_cast<char*>(state) + sizeof(residual_state));
}
inline const float* residual_of(const void* state) {
  return reinterpret_cast<const float*>(static_cast<const char*>(state) + sizeof(residual_state));
}
// The momentum of a kind that stores one.
inline float* momentum_of(const feedback_kind& kind, void* state, uint64_t elements) {
  return residual_of(state) + (kind.keeps_residual ? elements : 0);
}

// The learning rate, of a kind with a rate; 0 in a fresh state. (With an odd number of elements it is not aligned.)
double rate_of(const void* state, uint64_t elements);
void set_rate(void* state, uint64_t elements, double rate);

}  // namespace dr
