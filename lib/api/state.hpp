// States of feedback as a caller handles them: sizes, residuals, copies.
#pragma once

#include "pipeline/batch.hpp"

namespace dr {

// Bytes of a tensor's state; 0 if its plan keeps none. ARGUMENT: a tensor beyond any.
dr_status state_size(const plan& method, const tensor_view& tensor, size_t& bytes, dr_error& error);
// Whether an encode accepts the state. ARGUMENT.
dr_status fits_state(const plan& method, const tensor_view& tensor, const void* state, size_t state_size,
                     dr_error& error);
// The residual in a state and its elements. ARGUMENT: no state, or a fresh one.
dr_status find_residual(void* state, size_t state_size, float*& residual, uint64_t& elements, dr_error& error);
// The same of u of feedback=dgc, or m of feedback=momentum.
dr_status find_momentum(void* state, size_t state_size, float*& momentum, uint64_t& elements, dr_error& error);
// Makes a state of whatever memory, with a residual [elements], or of zeros (nullptr). The residual may be the state's
// own.
dr_status fill_state(const plan& method, const tensor_view& tensor, const float* residual, void* state,
                     size_t state_size, dr_error& error);

// Writes one array of a state [elements], and leaves the other as it is; of a fresh state that is zeros.
enum class state_array { residual, momentum };
dr_status write_state(const plan& method, const tensor_view& tensor, state_array which, const float* values,
                      void* state, size_t state_size, dr_error& error);

struct state_part {
  const void* state;
  size_t size;
  uint64_t first;  // element
};
// Copies so many elements from one state to another; a fresh source is zeros.
dr_status copy_state(const state_part& from, void* to, size_t to_size, uint64_t at, uint64_t elements, dr_error& error);
// Multiplies a residual: each value rounded once, 0 where it is not finite.
void scale_residual(std::span<float> residual, double factor);
dr_status scale_state(void* state, size_t state_size, double factor, dr_error& error);
// The L2 norm of a residual.
dr_status state_norm(const void* state, size_t state_size, double& norm, dr_error& error);

}  // namespace dr
