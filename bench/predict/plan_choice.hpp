// Which tensor gets which plan, so that the predicted step is short and the error within a budget.
#pragma once

#include <functional>
#include <vector>

namespace dr::predict {

// choice[i]: the option of tensor i; -1: dense.
struct choice_problem {
  size_t tensors = 0, options = 0;
  std::function<double(const std::vector<int>&)> step_ns;  // infinity: it cannot be modelled
  // Share of the whole gradient's squared error that an option brings to a tensor; empty: errors do not count.
  std::vector<std::vector<double>> error;  // [tensor][option]
  double budget = 0;                       // of the sum of these
  std::vector<double> sizes;               // [tensor] elements
};

struct choice_result {
  std::vector<int> choice;
  double step_ns = 0, error = 0;
  int best_uniform = -1;  // of all options within the budget, dense among them
  double uniform_step_ns = 0;
  bool exhaustive = false;
  bool stopped = false;  // more choices would have been tried
  size_t evaluations = 0;
};

// More combinations than these are not all tried.
inline constexpr double most_combinations = 20000;

// The most choices that are weighed beside the uniform ones: a step takes as long to model as it has tensors.
size_t most_evaluations(size_t tensors);

// The best of all where they are few. Else greedy: from the best start (uniform, or dense below a size) it changes the
// choice of one tensor at a time, the largest first, while the step gets shorter; at most `sweeps` times over all tensors.
// It stops at most_evaluations, larger tensors first. Never worse than the best uniform choice.
choice_result choose(const choice_problem& p, int sweeps = 4);

}  // namespace dr::predict
