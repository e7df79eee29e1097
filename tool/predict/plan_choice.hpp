// Chooses a plan per tensor: minimises the time to transfer a whole gradient, or the step within an error budget.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace dr::predict {

// choice[i]: the option of tensor i; -1: dense.
struct choice_problem {
  size_t tensors = 0, options = 0;
  std::function<double(const std::vector<int>&)> step_ns;  // infinity: not modelled
  // Relative error |g - c| / |g| of an option for a tensor; empty: errors do not count.
  std::vector<std::vector<double>> error;  // [tensor][option]
  // Maximum error of a tensor. Without it whole_ns is minimised.
  std::optional<double> budget;
  std::vector<double> sizes;  // [tensor] elements
};

struct choice_result {
  std::vector<int> choice;
  double step_ns = 0;
  double error = 0;       // root mean square over elements
  int best_uniform = -1;  // best single option within the budget, or dense
  double uniform_step_ns = 0, uniform_error = 0;
  bool exhaustive = false;
  bool stopped = false;  // the search hit its limit
  size_t evaluations = 0;
};

// The time to transfer a whole gradient: a step transfers 1 - error² of it, and the residual holds the rest for later
// steps. Trainings reached a given loss in this order (docs/PAYS.md).
inline double whole_ns(double step_ns, double error) {
  return error < 1 ? step_ns / (1 - error * error) : std::numeric_limits<double>::infinity();
}

// Up to this many combinations are all tried.
inline constexpr double most_combinations = 20000;

// The maximum number of evaluations beside the uniform ones: the time to model a step grows with its tensors.
size_t most_evaluations(size_t tensors);

// Tries all combinations if they are few. Else greedy: from the best start (uniform; dense below a size; one option, replaced
// by another where it exceeds the budget) it changes one tensor at a time, the largest first, while the result improves, at
// most `sweeps` times over all tensors and most_evaluations in all. Never worse than the best uniform choice.
choice_result choose(const choice_problem& p, int sweeps = 4);

}  // namespace dr::predict
