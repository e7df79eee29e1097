// The step of a training, by each way to exchange its gradients.
#pragma once

#include <algorithm>
#include <memory>

#include "exchange_model.hpp"
#include "hook_model.hpp"

namespace dr::predict {

enum class hook_kind { ddp, exchange };
inline const char* transport_of(hook_kind hook) { return hook == hook_kind::ddp ? "gloo" : "mpi"; }

// A way to exchange gradients. Dense: all-reduce of `dense_factor` · 4 bytes an element. PowerSGD: by formula. Else plans.
struct candidate {
  std::string name;
  double dense_factor = 0;
  uint32_t powersgd_rank = 0;
  std::vector<std::shared_ptr<const plan_work>> works;
  std::vector<int> choice;  // of each tensor: which of `works`; -1: dense

  bool is_plan() const { return dense_factor == 0 && powersgd_rank == 0; }
};

candidate dense_candidate(bool half);
candidate powersgd_candidate(uint32_t rank);
// Every tensor by one plan.
candidate uniform_candidate(std::shared_ptr<const plan_work> work, size_t tensors);

struct step_model {
  const profile* costs = nullptr;
  training model;
  network net;
  hook_settings how;
  hook_kind hook = hook_kind::ddp;
  std::shared_ptr<const plan_work> exact;  // what travels exactly in frames
  double flops = 0;                        // a second, of PowerSGD's products; 0: they are not counted
  double products = 1;                     // factor of the time that these take

  // Throws unsupported_model.
  outcome step(const candidate& c, bool traced = false) const;
  // All that the candidate takes is known: of PowerSGD also its products.
  bool is_complete(const candidate& c) const;
  // Of a ring of f32, or of bf16; infinity if that is not modelled (over 31 years).
  double dense_ns(bool half) const;
  // The faster of the two.
  double best_dense_ns() const { return std::min(dense_ns(false), dense_ns(true)); }

  step_model with_rate(double bits_per_second) const;
  // By the profile's link that is nearest to so many; a link that was not stated is that one.
  step_model with_ranks(uint32_t ranks) const;
  step_model with_batch(double factor) const;  // forward, backward and the rest take `factor` times as long
  // So does all other computing: another machine. Of candidates' plans see plan_work::scaled.
  step_model with_compute(double factor) const;

  // What the figures of a candidate rest on: ranges of the profile that are left, formulas, unknown times.
  void note(const candidate& c, note_list& notes) const;
  // Likewise of the link.
  void note_link(note_list& notes) const;

 private:
  outcome unbounded_step(const candidate& c, bool traced) const;
  outcome exchange_step(const candidate& c, bool traced) const;
  outcome powersgd_step(uint32_t rank, bool traced) const;
  const plan_profile* powersgd_costs(uint32_t rank) const;
  struct factor_bytes {
    double first = 0, second = 0;
  };
  // Of the tensors that have the transform `which`.
  factor_bytes factors_of_choice(const candidate& c, int which) const;
};

// The rates, or factors of the batch, at which the candidate is faster than the faster dense ring: of those that are
// looked at, 100 kbit/s to 10 Tbit/s and 1/64 to 64.
struct paying_range {
  double above = 0;  // 0: from the least on
  double below = 0;  // 0: it never is; infinity: to the largest
};
// `stretch`: so many times its step counts.
paying_range break_even_rate(const step_model& m, const candidate& c, double stretch = 1);
paying_range break_even_batch(const step_model& m, const candidate& c, double stretch = 1);

// "pays", "even" or "slower": within 3 % it is even, less than two runs of one training differ.
const char* verdict_of(double step_ns, double dense_ns);

}  // namespace dr::predict
