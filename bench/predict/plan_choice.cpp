#include "plan_choice.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace dr::predict {
namespace {

class search {
 public:
  explicit search(const choice_problem& p) : p_(p) {}

  choice_result run(int sweeps) {
    const int options = static_cast<int>(p_.options);
    for (int o = -1; o < options; ++o) consider(std::vector<int>(p_.tensors, o));
    best_.best_uniform = best_.choice.empty() ? -1 : best_.choice[0];
    best_.uniform_step_ns = best_.step_ns;
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
      for (int sweep = 0; sweep < sweeps && improve(); ++sweep) {
      }
    }
    best_.error = error_of(best_.choice);
    return best_;
  }

 private:
  double error_of(const std::vector<int>& choice) const {
    double sum = 0;
    for (size_t i = 0; i < choice.size() && !p_.error.empty(); ++i)
      if (choice[i] >= 0) sum += p_.error[i][static_cast<size_t>(choice[i])];
    return sum;
  }

  // Takes it if it is better: shorter, or as short with less error.
  bool consider(const std::vector<int>& choice) {
    const double error = error_of(choice);
    if (!p_.error.empty() && error > p_.budget * (1 + 1e-12)) return false;
    if (left_ == 0) return best_.stopped = true, false;
    --left_, ++best_.evaluations;
    const double step = p_.step_ns(choice);
    const bool first = best_.choice.empty();
    if (!first && !(step < best_.step_ns || (step == best_.step_ns && error < best_.error))) return false;
    best_.choice = choice, best_.step_ns = step, best_.error = error;
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

  // At most 32 of the sizes that tensors have.
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
        better |= consider(choice);
      }
    return better;
  }

  const choice_problem& p_;
  size_t left_ = std::numeric_limits<size_t>::max();  // evaluations
  choice_result best_;
};

}  // namespace

size_t most_evaluations(size_t tensors) {
  return std::clamp<size_t>(200'000'000 / std::max<size_t>(tensors, 1), 5000, 50'000);
}

choice_result choose(const choice_problem& p, int sweeps) { return search(p).run(sweeps); }

}  // namespace dr::predict
