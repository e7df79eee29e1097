// A kind of feedback: what it stores for a tensor from step to step. Its entry is for the registry; the rest is its
// interface to the pipeline, which reads traits and has no kind's name. feedback_kinds.cpp declares the kinds.
#pragma once

#include <cstdint>

#include "deepreduce/codec.hpp"

namespace dr {

// A step computes gamma · gradient + beta · state.
struct feedback_weights {
  float beta, gamma;
};

// What the weights of a step depend on, besides the parameters.
struct feedback_step {
  double last_rate = 0;  // the learning rate in the state; 0: the state is fresh, or has no rate
  double norm = 0;       // L2 norm of all gradients of the call whose feedback clips
};

struct feedback_kind {
  dr_codec entry;  // name, summary, id, parameters, traits. First, so that an entry leads here.

  // The arrays of a state, f32[elements], in this order: one or both.
  bool keeps_residual = false;  // what was not sent; an undelivered frame is added to it
  bool keeps_momentum = false;  // with a residual, which accumulates it (a velocity); alone, it is what is sent
  feedback_weights (*weights)(const dr_params&, const feedback_step&);
  // The learning rate of the step, f64, which the state stores after its arrays. nullptr: none.
  double (*rate)(const dr_params&) = nullptr;
  // The L2 norm to which the gradients of a call are clipped; 0: they are not. nullptr: never.
  double (*clip)(const dr_params&) = nullptr;
  // Whether the momentum of a sent element becomes 0. nullptr: never.
  bool (*masks)(const dr_params&) = nullptr;
  // For a tensor that is sent whole and exactly, while others are not, the parameter `whole_param` has the value
  // `whole_value`; nullptr: its default. whole_param == nullptr: no parameter changes.
  const char *whole_param = nullptr, *whole_value = nullptr;
  // The parameter with the weight of the gradient. A sum has its default: the ranks have applied it to what is added up.
  const char* weight_param = nullptr;
  // Weights and a residual only: the kind for transforms, and for a sum, which includes the momentum.
  bool plain = false;

  // The number of the kind in states; its meaning never changes.
  uint32_t number() const { return entry.id - 1; }
  // Whether the residual accumulates a momentum.
  bool is_velocity() const { return keeps_residual && keeps_momentum; }
  uint32_t arrays() const { return uint32_t{keeps_residual} + uint32_t{keeps_momentum}; }
};

// The kind of an entry of role DR_ROLE_FEEDBACK: only built-ins have that role.
inline const feedback_kind& feedback_of(const dr_codec& entry) { return reinterpret_cast<const feedback_kind&>(entry); }

// The name of the plain kind in plans.
const char* plain_feedback();

// A kind with the parameters of a plan.
struct bound_feedback {
  const feedback_kind& kind;
  dr_params params;

  feedback_weights weights(const feedback_step& step = {}) const { return kind.weights(params, step); }
  double rate() const { return kind.rate ? kind.rate(params) : 0; }
  double clip() const { return kind.clip ? kind.clip(params) : 0; }
  bool masks() const { return kind.masks && kind.masks(params); }
};

}  // namespace dr
