// Which tensors the DDP hook sends together, and by which plan: what a sender of the library says, which the hook asks, too.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepreduce/sender.hpp"
#include "plan_work.hpp"
#include "training_model.hpp"

namespace dr::predict {

struct hook_unit {
  uint32_t kind = DR_UNIT_FRAMES;  // DR_UNIT_*
  size_t frames = 0;               // of a slot
  struct tensor {
    size_t position;  // in the model
    bool exact;       // it has no plan, or is too small for it
    bool flat;        // those of its plan are one tensor (bucket=flat)
  };
  std::vector<tensor> tensors;
};

// Remembers the units of the choice that it was asked for last, for a model is asked at many rates.
class hook_units {
 public:
  // choice: plan per tensor, nullptr: dense. dense_below: tensors with fewer elements are sent exactly; none: the plan's
  // default. Throws unsupported_model: a sender does not take these plans together.
  const std::vector<hook_unit>& of(const training& t, std::span<const plan_work* const> choice,
                                   std::optional<double> dense_below);

 private:
  struct question {
    std::vector<const dr_plan*> plans;
    std::vector<double> elements;
    std::optional<double> dense_below;
    bool operator==(const question&) const = default;
  };
  context context_;
  question asked_;
  std::vector<std::shared_ptr<const plan>> alive_;  // plans of `asked_`
  std::vector<hook_unit> units_;
};

// Whether a tensor of a plan is too small for it.
bool is_exact(const plan_work& work, double elements, std::optional<double> dense_below);

}  // namespace dr::predict
