// A step of DistributedDataParallel, with the DDP hook of this library or without one.
//
// As bindings/python/deepreduce/torch/_ddp.py does it: DDP's buckets become ready one after the other during backward. The
// hook cuts the parameters into units of its own. When the bucket comes that has a unit's last tensor, the thread of
// backward encodes the unit and issues an all-gather of slots; gloo's thread carries it. At the end of backward the hook
// waits for the units in their order and merges each. Encode and merge are computing: they delay what is behind them.
#pragma once

#include <optional>
#include <span>

#include "network.hpp"
#include "plan_work.hpp"
#include "timeline.hpp"
#include "training_model.hpp"

namespace dr::predict {

struct hook_settings {
  double bucket_bytes = 25 << 20;       // DDP's bucket_cap_mb; a unit has no more, either
  double first_bucket_bytes = 1 << 20;  // DDP's first bucket closes earlier
  std::optional<double> bypass;         // tensors of fewer elements travel exactly; none: as the plan has it
  double slowdown = 1;                  // of computing while the link is busy
  double skew_ns = 0;                   // by which the slowest rank is behind in a step
  double hook_ns = 0;                   // that the hook takes in a step beside encode and merge
};

// As the hook has it: 0 of a plan whose tensors are one, 1000 of others.
double bypass_of(const hook_settings& how, const plan_work& plan);

// choice: of each tensor its plan, nullptr for an exact one in the same frames. exact: costs of those.
outcome hook_step(const training& t, std::span<const plan_work* const> choice, const plan_work& exact,
                  const network& net, const hook_settings& how, bool traced = false);

// Without a hook: an all-reduce of each bucket, as soon as it is ready. factor: bytes / bytes of f32.
outcome dense_step(const training& t, double factor, const network& net, const hook_settings& how, bool traced = false);

}  // namespace dr::predict
