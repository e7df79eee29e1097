// A step of DistributedDataParallel, with or without the DDP hook of this library.
//
// Follows bindings/python/deepreduce/torch/_ddp.py. DDP's buckets become ready one after another during backward. The hook has
// its own units of parameters (hook_units.hpp). When the bucket with a unit's last tensor is ready, the thread of backward encodes the unit
// and issues an all-gather of slots, which gloo's thread runs. At the end of backward the hook waits for the units in
// order and merges them; with exchange=owner it first adds up its range of each and sends the sum.
// Encode and merge are computing: they delay all later work.
#pragma once

#include <optional>
#include <span>

#include "hook_units.hpp"
#include "network.hpp"
#include "plan_work.hpp"
#include "timeline.hpp"
#include "training_model.hpp"

namespace dr::predict {

struct hook_settings {
  double bucket_bytes = 25 << 20;       // DDP's bucket_cap_mb
  double first_bucket_bytes = 1 << 20;  // DDP's first bucket closes earlier
  std::optional<double> bypass;         // tensors with fewer elements are sent exactly; none: the plan's default
  double slowdown = 1;                  // of computing while the link is busy
  double skew_ns = 0;                   // delay of the slowest rank in a step
  double hook_ns = 0;                   // time of the hook per step beside encode and merge
};

// units: of these plans. exact: costs of what is sent exactly.
outcome hook_step(const training& t, std::span<const plan_work* const> choice, std::span<const hook_unit> units,
                  const plan_work& exact, const network& net, const hook_settings& how, bool traced = false);

// Without a hook: an all-reduce per bucket, as soon as it is ready. factor: bytes / bytes of f32.
outcome dense_step(const training& t, double factor, const network& net, const hook_settings& how, bool traced = false);

}  // namespace dr::predict
