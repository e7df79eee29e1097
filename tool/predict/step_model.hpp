// The step of a training for every way to exchange gradients.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>

#include "exchange_model.hpp"
#include "hook_model.hpp"

namespace dr::predict {

enum class hook_kind { ddp, exchange };
inline const char* transport_of(hook_kind hook) { return hook == hook_kind::ddp ? "gloo" : "mpi"; }

// A way to exchange gradients. Dense: an all-reduce of `dense_factor` · 4 bytes per element. PowerSGD: by formula. Else plans.
struct candidate {
  std::string name;
  double dense_factor = 0;
  uint32_t powersgd_rank = 0;
  std::vector<std::shared_ptr<const plan_work>> works;
  std::vector<int> choice;  // per tensor, an index into `works`; -1: dense

  bool is_plan() const { return dense_factor == 0 && powersgd_rank == 0; }
};

candidate dense_candidate(bool half);
candidate powersgd_candidate(uint32_t rank);
// All tensors by one plan.
candidate uniform_candidate(std::shared_ptr<const plan_work> work, size_t tensors);

struct step_model {
  const profile* costs = nullptr;
  training model;
  network net;
  hook_settings how;
  hook_kind hook = hook_kind::ddp;
  std::shared_ptr<const plan_work> exact;  // for tensors that frames carry exactly
  double flops = 0;                        // operations per second of PowerSGD's products; 0: not counted
  double products = 1;                     // factor on the time of these products
  std::shared_ptr<hook_units> units = std::make_shared<hook_units>();  // of the hook; copies share it

  // Throws unsupported_model.
  outcome step(const candidate& c, bool traced = false) const;
  // Whether all costs of the candidate are known, for PowerSGD those of its products too.
  bool is_complete(const candidate& c) const;
  // The step with a ring of f32 or bf16; infinity if not modelled (more than 31 years).
  double dense_ns(bool half) const;
  // The faster of the two.
  double best_dense_ns() const { return std::min(dense_ns(false), dense_ns(true)); }

  step_model with_rate(double bits_per_second) const;
  // With the profile's link measured nearest to that many ranks; it replaces a link that was not stated.
  step_model with_ranks(uint32_t ranks) const;
  step_model with_batch(double factor) const;  // scales forward, backward and the rest by `factor`
  // Scales all other computing, too: another machine. For plans see plan_work::scaled.
  step_model with_compute(double factor) const;

  // Assumptions behind a candidate's numbers: extrapolation of the profile, formulas, unknown times.
  void note(const candidate& c, note_list& notes) const;
  // Assumptions about the link.
  void note_link(note_list& notes) const;

 private:
  outcome unbounded_step(const candidate& c, bool traced) const;
  outcome exchange_step(const candidate& c, bool traced) const;
  outcome powersgd_step(uint32_t rank, bool traced) const;
  const plan_profile* powersgd_costs(uint32_t rank) const;
  struct factor_bytes {
    double first = 0, second = 0;
  };
  // For the tensors that have the transform `which`.
  factor_bytes factors_of_choice(const candidate& c, int which) const;
  std::vector<const plan_work*> works_of(const candidate& c) const;  // of each tensor; nullptr: dense
};

// The rates, or factors of the batch, at which a candidate beats the faster dense ring.
struct paying_range {
  double above = 0;  // 0: no lower limit
  double below = 0;  // 0: never; infinity: no upper limit
};
// Among 100 kbit/s to 10 Tbit/s, and 1/64 to 64. `stretch`: factor on its step.
paying_range break_even_rate(const step_model& m, const candidate& c, double stretch = 1);
paying_range break_even_batch(const step_model& m, const candidate& c, double stretch = 1);

// The range of x in which `pays` holds, of a geometric grid of `points`; its ends are refined.
paying_range where_it_pays(double low, double high, int points, const std::function<bool(double)>& pays);

// Two runs of one training differ by more.
inline constexpr double even_share = 0.03;
// "pays", "even" or "slower": even within 3 %.
const char* verdict_of(double step_ns, double dense_ns);

}  // namespace dr::predict
