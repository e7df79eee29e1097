// The rules of a sender: by which plan a tensor is sent, and together with which others.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "deepreduce/sender.h"
#include "pipeline/bind.hpp"

namespace dr {

using plan_ptr = std::shared_ptr<const plan>;

struct named_tensor {
  std::string name;
  dr_dtype dtype = DR_F32;
  bool is_rows = false;
  uint64_t elements = 0;
  uint64_t rows = 1;           // of its matrix, at least 1
  plan_ptr method;             // its own, or that of its line in the book; nullptr: dense
  const void* base = nullptr;  // the weights that it is to change
};

struct unit_rules {
  uint32_t ranks = 1;
  uint32_t flat = DR_FLAT_BY_PLAN;
  uint64_t dense_below = DR_DENSE_BELOW_BY_PLAN;
  uint64_t unit_bytes = 0;
  bool scatters = false;
  bool reduces_halves = false;  // DR_SENDER_HALVES
};

// A unit: the tensors of its frames, in order.
struct unit_list {
  uint32_t kind = DR_UNIT_FRAMES;
  std::vector<std::vector<uint32_t>> frames;
  std::vector<uint32_t> tensors;  // of all frames, one behind the other
  uint32_t digest = 0;            // of names, sizes, types and plans
};

struct unit_plan {
  std::vector<plan_ptr> methods;  // by which the tensors are sent
  std::vector<uint64_t> keys;     // of their random numbers
  std::vector<unit_list> units;
};

// ARGUMENT (the error's tensor), UNSUPPORTED.
dr_status plan_units(std::span<const named_tensor> tensors, const unit_rules& rules, unit_plan& out, dr_error& error);

// The type of a plan that rounds all values to it, alone or with a residual of the rounding; 0 for other plans. An
// all-reduce of that type has the same bits as an exchange of such frames, except for the rounding of sums.
dr_dtype half_of(const plan& p);

// The factor of a residual before feedback adds the next gradient.
float decay_of(const plan& p);

// A tensor of such a plan with fewer elements is sent exactly.
uint64_t dense_below_of(const plan& method, uint64_t requested);

}  // namespace dr
