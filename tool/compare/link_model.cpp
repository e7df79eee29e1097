#include "link_model.hpp"

#include <cmath>
#include <limits>

#include "tool/predict/exchange_model.hpp"
#include "tool/predict/network.hpp"

namespace dr::compare {

double ring_ns(double bytes, uint32_t ranks, const link& l) { return predict::ring_allreduce_ns(bytes, ranks, l); }

double step_ns(const step_costs& plan, const std::string& stage, uint32_t ranks, const link& l) {
  predict::exchange_work work;
  work.encode.slope = plan.encode_ns / plan.elements;
  work.first.slope = work.merge.slope = plan.merge_ns / ranks / plan.elements;
  work.frame.slope = plan.frame_bytes / plan.elements;
  work.sum_growth = plan.sum_growth;
  work.dense_bytes = plan.dense_bytes / plan.elements;
  try {
    return predict::model_exchange(stage, plan.elements, work, ranks, l).total_ns;
  } catch (const predict::unsupported_model&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

// The step is the maximum of chains of computing and bytes: convex in x = 1 / rate and at most f0 + s x, where f0 is
// computing alone and s x the link alone. So it crosses the ring's c x once, between f0 / c and f0 / (c - s).
double pays_below(const step_costs& plan, const std::string& stage, double bytes, uint32_t ranks) {
  const auto at = [&](double rate) { return step_ns(plan, stage, ranks, {rate, 0, true}); };
  constexpr double all_computing = 1e21, long_ns = 1e15;  // (of a clock of 64 bits)
  const double slow = 8e9 * (plan.frame_bytes + plan.dense_bytes + 512) * 2 * ranks / long_ns;
  const double f0 = at(all_computing), s = at(slow) * slow, c = ring_ns(bytes, ranks, {1, 0, true});
  if (std::isnan(f0) || std::isnan(s)) return f0 + s;
  if (s >= c || f0 <= 0) return 0;
  double low = f0 / c, high = f0 / (c - s);
  for (int i = 0; i < 24 && high > low * (1 + 1e-6); ++i) {
    // (Where nothing overlaps, as in a gather, the upper end is the answer.)
    const double x = i == 0 ? high * (1 - 1e-6) : std::sqrt(low * high);
    (at(1 / x) < c * x ? high : low) = x;
  }
  return 1 / high;
}

const char* const model_help =
    R"(--link RATE[,LATENCY] models one step of N ranks (--ranks) from the measured times and bytes. The plan's exchange runs dry, step by
step, under a virtual clock; a part of the elements costs its share of the plan's times and bytes. Only parts= of the exchange
overlap. Copies between a GPU and its host are not counted. docs/PAYS.md describes the model; `predict` adds backward and many
tensors. L is the latency, D the time of the dense tensor on the link, t that of a frame.
  dense_step_ns   ring all-reduce of the dense tensor: 2 (N - 1) (L + D / N). Its additions are not counted
  bf16_step_ns    the same in 16 bits per element; the conversion is not counted
  step_ns         by the plan's exchange= stage, gather if it has none
                  transform=lowrank: encode + merge + a ring all-reduce of each factor
  gather_step_ns  by gather: sparsify + encode + L + (N - 1) t + merge + L + (N - 1) 256 bytes on the link: the ranks agree
                  before they write
                  The frame of a sum counts as one rank's frame if the plan sparsifies, else as min(N, d / support)
                  frames. hierarchy is modelled for at most 256 ranks
  verdict         against the faster ring: pays, slower, or even: within the measured spread; unknown: not modelled
pays_below: the speed of each rank's link under which step_ns is less than dense_step_ns, without latency. 0: at no speed.
The dense tensor of f16 and bf16 inputs has 16 bits per element.
)";

}  // namespace dr::compare
