// A kind of feedback: what it keeps of a tensor from step to step. Its entry is for the registry; the rest is its
// interface to the pipeline, which asks for traits and knows no kind by name. feedback_kinds.cpp declares them.
#pragma once

#include <cstdint>

#include "deepreduce/codec.hpp"

namespace dr {

// A step computes gamma · gradient + beta · state.
struct feedback_weights {
  float beta, gamma;
};

// What the weights of a step depend on beside the parameters.
struct feedback_step {
  double last_rate = 0;  // the learning rate in the state; 0: the state is fresh, or has none
  double norm = 0;       // L2 norm of all gradients of the call whose feedback clips
};

struct feedback_kind {
  dr_codec entry;  // name, summary, id, parameters, traits. First, so that an entry leads here.

  // The arrays of a state, f32[elements] each, in this order: one or both.
  bool keeps_residual = false;  // what was not sent; a frame that did not arrive is added to it
  bool keeps_momentum = false;  // beside a residual, which accumulates it (a velocity); alone, what is sent
  feedback_weights (*weights)(const dr_params&, const feedback_step&);
  // The learning rate of the step, f64, which the state keeps behind its arrays. nullptr: none.
  double (*rate)(const dr_params&) = nullptr;
  // The L2 norm to which the gradients of a call are clipped; 0: they are not. nullptr: never.
  double (*clip)(const dr_params&) = nullptr;
  // Whether the momentum of a sent element becomes 0. nullptr: never.
  bool (*masks)(const dr_params&) = nullptr;
  // A tensor that is sent whole and exactly, beside others that are not, has these parameters but for one: it is
  // `whole_value`, or with nullptr its default. `whole_param` nullptr: all the same.
  const char *whole_param = nullptr, *whole_value = nullptr;
  // Weights and a residual, no more: what a transform can keep, and the feedback of a sum that has the momentum already.
  bool plain = false;

  // The number of the kind in states; it never changes its meaning.
  uint32_t number() const { return entry.id - 1; }
  // The residual accumulates a momentum.
  bool is_velocity() const { return keeps_residual && keeps_momentum; }
  uint32_t arrays() const { return uint32_t{keeps_residual} + uint32_t{keeps_momentum}; }
};

// The kind of an entry of role DR_ROLE_FEEDBACK: only built-ins have that role.
inline const feedback_kind& feedback_of(const dr_codec& entry) { return reinterpret_cast<const feedback_kind&>(entry); }

// The plain kind, as plans name it.
const char* plain_feedback();

// A kind with the parameters that a plan gave.
struct bound_feedback {
  const feedback_kind& kind;
  dr_params params;

  feedback_weights weights(const feedback_step& step = {}) const { return kind.weights(params, step); }
  double rate() const { return kind.rate ? kind.rate(params) : 0; }
  double clip() const { return kind.clip ? kind.clip(params) : 0; }
  bool masks() const { return kind.masks && kind.masks(params); }
};

}  // namespace dr
