#include "plan_choice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace dr::predict {
namespace {

// The minimum gain of changing one tensor. Smaller gains are not worth another line of the book; small tensors beside others
// of their plan cost almost nothing.
constexpr double least_gain = 1e-4;

class search {
 public:
  explicit search(const choice_problem& p) : p_(p) {}

  choice_result run(int sweeps) {
    const int options = static_cast<int>(p_.options);
    for (int o = -1; o < options; ++o) consider(std::vector<int>(p_.tensors, o));
    best_.best_uniform = best_.choice.empty() ? -1 : best_.choice[0];
    best_.uniform_step_ns = best_.step_ns, best_.uniform_error = error_of(best_.choice);
    if (std::pow(static_cast<double>(p_.options + 1), static_cast<double>(p_.tensors)) <= most_combinations) {
      best_.exhaustive = true;
      try_all();
    } else {
      left_ = most_evaluations(p_.tensors);
      for (const double size : sizes_to_try())
        for (int o = 0; o < options; ++o) {
          std::vector<int> choice(p_.tensors, -1);
          for (size_t i = 0; i < p_.tensors; ++i)
            if (p_.sizes[i] >= size) choice[i] = o;
          consider(choice);
        }
      for (int o = 0; o < options && p_.budget; ++o)
        for (int other = -1; other < options; ++other) consider(within_budget(o, other));
      for (int sweep = 0; sweep < sweeps && improve(); ++sweep) {
      }
    }
    return best_;
  }

 private:
  double error_of(const std::vector<int>& choice) const {
    double squares = 0, elements = 0;
    for (size_t i = 0; i < choice.size() && !p_.error.empty(); ++i) {
      elements += p_.sizes[i];
      if (choice[i] >= 0) squares += p_.sizes[i] * std::pow(error_at(i, choice[i]), 2);
    }
    return elements > 0 ? std::sqrt(squares / elements) : 0;
  }

  double error_at(size_t tensor, int option) const { return p_.error[tensor][static_cast<size_t>(option)]; }

  bool fits(size_t tensor, int option) const {
    return option < 0 || p_.error.empty() || !p_.budget || error_at(tensor, option) <= *p_.budget * (1 + 1e-12);
  }

  // `option` if it is within the budget, else `other`, else dense.
  std::vector<int> within_budget(int option, int other) const {
    std::vector<int> choice;
    for (size_t i = 0; i < p_.tensors; ++i) choice.push_back(fits(i, option) ? option : fits(i, other) ? other : -1);
    return choice;
  }

  // Accepts a better choice: shorter by more than this share, or equally short with a smaller error.
  bool consider(const std::vector<int>& choice, double margin = 0) {
    for (size_t i = 0; i < choice.size(); ++i)
      if (!fits(i, choice[i])) return false;
    if (left_ == 0) return best_.stopped = true, false;
    --left_, ++best_.evaluations;
    const double step = p_.step_ns(choice), error = error_of(choice);
    const double value = p_.budget ? step : whole_ns(step, error);
    const bool first = best_.choice.empty();
    if (!first && !(value < (1 - margin) * value_ || (value == value_ && error < best_.error))) return false;
    best_.choice = choice, best_.step_ns = step, best_.error = error, value_ = value;
    return true;
  }

  void try_all() {
    std::vector<int> choice(p_.tensors, -1);
    for (;;) {
      consider(choice);
      size_t i = 0;
      while (i < p_.tensors && ++choice[i] == static_cast<int>(p_.options)) choice[i++] = -1;
      if (i == p_.tensors) return;
    }
  }

  // At most 32 distinct sizes of tensors.
  std::vector<double> sizes_to_try() const {
    const std::set<double> distinct(p_.sizes.begin(), p_.sizes.end());
    const std::vector<double> all(distinct.begin(), distinct.end());
    std::vector<double> some;
    const size_t n = std::min<size_t>(all.size(), 32);
    for (size_t i = 0; i < n; ++i) some.push_back(all[i * all.size() / n]);
    return some;
  }

  bool improve() {
    std::vector<size_t> order(p_.tensors);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return p_.sizes[i]; });
    bool better = false;
    for (const size_t i : order)
      for (int o = -1; o < static_cast<int>(p_.options); ++o) {
        if (best_.choice[i] == o) continue;
        if (best_.stopped) return false;
        std::vector<int> choice = best_.choice;
        choice[i] = o;
        better |= consider(choice, least_gain);
      }
    return better;
  }

  const choice_problem& p_;
  size_t left_ = std::numeric_limits<size_t>::max();  // evaluations
  choice_result best_;
  double value_ = 0;  // of the best one: time
};

}  // namespace

size_t most_evaluations(size_t tensors) {
  return std::clamp<size_t>(200'000'000 / std::max<size_t>(tensors, 1), 5000, 50'000);
}

choice_result choose(const choice_problem& p, int sweeps) { return search(p).run(sweeps); }

}  // namespace dr::predict
