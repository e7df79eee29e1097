// Which tensor gets which plan, so that the predicted step is short and little is lost, or each tensor's error within a budget.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace dr::predict {

// choice[i]: the option of tensor i; -1: dense.
struct choice_problem {
  size_t tensors = 0, options = 0;
  std::function<double(const std::vector<int>&)> step_ns;  // infinity: it cannot be modelled
  // Relative error |g - c| / |g| of an option for a tensor; empty: errors do not count.
  std::vector<std::vector<double>> error;  // [tensor][option]
  // Most of each tensor. Without it a choice is as good as its whole_ns is short.
  std::optional<double> budget;
  std::vector<double> sizes;  // [tensor] elements
};

struct choice_result {
  std::vector<int> choice;
  double step_ns = 0;
  double error = 0;       // root of the mean of squares, weighted by elements
  int best_uniform = -1;  // of all options within the budget, dense among them
  double uniform_step_ns = 0, uniform_error = 0;
  bool exhaustive = false;
  bool stopped = false;  // more choices would have been tried
  size_t evaluations = 0;
};

// The time in which a training sends a whole gradient's worth: a step sends 1 - error² of it, and the residual keeps the
// rest for later ones. Trainings reached a loss in this order (docs/PAYS.md).
inline double whole_ns(double step_ns, double error) {
  return error < 1 ? step_ns / (1 - error * error) : std::numeric_limits<double>::infinity();
}

// More combinations than these are not all tried.
inline constexpr double most_combinations = 20000;

// The most choices that are weighed beside the uniform ones: a step takes as long to model as it has tensors.
size_t most_evaluations(size_t tensors);

// The best of all where they are few. Else greedy: from the best start (uniform; dense below a size; one option with another
// where it is over the budget) it changes the choice of one tensor at a time, the largest first, while that gets better; at most `sweeps` times over all tensors.
// It stops at most_evaluations, larger tensors first. Never worse than the best uniform choice.
choice_result choose(const choice_problem& p, int sweeps = 4);

}  // namespace dr::predict
