#include "plan_work.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace dr::predict {
namespace {

// Bound of a frame of one tensor; the stages `exchange` and `bucket` do not matter.
double bound_of(const std::string& text, double elements) {
  const plan method(bare_plan(text));
  const float nothing = 0;
  const dr_tensor t = dense(DR_F32, &nothing, static_cast<uint64_t>(elements));
  return static_cast<double>(context().bound(method, std::span(&t, 1)));
}

}  // namespace

plan_work::plan_work(const profile& p, const std::string& text, note_list& notes, double flops)
    : text_(text), method_(std::make_shared<const plan>(text)) {
  const plan& method = *method_;
  const std::vector<dr_stage> stages = method.stages();
  const uint32_t flags = method.info().flags;
  // "" if the plan lacks the stage, or if bytes codecs follow it.
  const auto alone = [&](const char* role) -> std::string_view {
    const auto names =
        std::ranges::count_if(stages, [&](const dr_stage& s) { return std::string_view(s.role) == role; });
    return names == 1 ? find_stage(stages, role)->name : "";
  };
  if (const dr_stage* const exchange = find_stage(stages, "exchange"); exchange && !exchange->is_default)
    stage_ = exchange->text, schedule_ = exchange->name;
  if (const dr_stage* const transform = find_stage(stages, "transform"))
    if (const dr_stage_param* const rank = find_param(*transform, "rank"))
      factor_rank_ = static_cast<uint32_t>(rank->number);
  feedback_ = (flags & DR_PLAN_FEEDBACK) != 0;
  const plan_profile* known = find_plan(p, text, &notes);
  if (factor_rank_ && flops > 0 && (!known || !known->encode)) {
    // Three products: one before each factor, and the restoring one (Agarwal et al. 2022).
    encode_.slope = 1e9 * 2 * factor_rank_ / flops;
    first_.slope = 2 * encode_.slope;
    notes.insert(fmt::format("'{}': --flops sets the cost of its products", text));
    return;
  }
  if (!known || !known->encode)
    throw std::runtime_error(fmt::format("{}: no cost of encode of plan '{}'; `deepreduce calibrate` measures it",
                                         p.where, local_plan(text)));
  encode_ = *known->encode;
  if (!known->merge && !known->decode)
    throw std::runtime_error(fmt::format("{}: no cost of merge of plan '{}'", p.where, known->plan));
  if (!known->merge)
    notes.insert(fmt::format("'{}': the profile has no cost of merge; the cost of decode is used", known->plan));
  merge_ = known->merge ? *known->merge : *known->decode;
  first_ = known->decode ? *known->decode : merge_;
  if (factor_rank_) return;
  if (known->frame)
    frame_ = *known->frame, knows_frame_ = true;
  else
    notes.insert(fmt::format("'{}': the profile has no frame sizes; bounds are used", known->plan));
  growth_ = known->sum_growth;
  keeps_count_ = alone("sparsify") != "none" && alone("sparsify") != "threshold";
}

plan_work plan_work::exact(const profile& p, note_list& notes) {
  plan_work w;
  w.method_ = std::make_shared<const plan>(exact_text);
  w.text_ = std::string(w.method_->text());
  if (const plan_profile* known = find_plan(p, w.text_)) {
    if (known->encode) w.encode_ = *known->encode;
    if (known->merge) w.first_ = w.merge_ = *known->merge;
    if (known->decode) w.first_ = *known->decode;
    w.add_ = known->add ? *known->add : w.merge_;
  } else {
    notes.insert(
        "tensors that a frame carries exactly cost bytes but no time: the profile has no costs of 'index=all "
        "value=raw'");
  }
  return w;
}

double plan_work::bound_bytes(double n) const {
  if (n <= 0) return 0;
  const auto [at, fresh] = bounds_.try_emplace(n, 0);
  if (fresh) at->second = bound_of(text_, n);
  return at->second;
}

double plan_work::frame_bytes(double n) const {
  if (n <= 0) return 0;
  return std::max(1.0, size_factor_ * (knows_frame_ ? std::min(frame_(n), bound_bytes(n)) : bound_bytes(n)));
}

double plan_work::batch_bytes(double n, double tensors) const {
  return tensors <= 1 ? frame_bytes(n) : tensors * frame_bytes(n / tensors);
}

double plan_work::sum_growth(double ranks) const {
  if (growth_.empty() || ranks < 2) return 1;
  // Linear between two numbers of ranks, and extrapolated beyond the last. A sum that is sparsified again to a fixed number
  // of elements does not grow: its measured growth comes from entropy coding, and stays constant.
  double before_ranks = 1, before = 1, share = 0;
  for (const auto& [at, factor] : growth_) {
    share = (factor - before) / std::max(at - before_ranks, 1.0);
    if (ranks <= at) return before + share * (ranks - before_ranks);
    before_ranks = at, before = factor;
  }
  return keeps_count_ ? before : std::min(ranks, before + std::max(0.0, share) * (ranks - before_ranks));
}

void plan_work::note_growth(double ranks, note_list& notes) const {
  const bool sums = !schedule_.empty() && schedule_ != "gather";
  if (sums && !growth_.empty() && ranks > growth_.back().first)
    notes.insert(fmt::format("extrapolation: frames of sums were measured of up to {:g} ranks, and are used of {:g}",
                             growth_.back().first, ranks));
}

exchange_work plan_work::as_exchange_work(double ranks, const plan_work& exact) const {
  exchange_work w{encode_, first_, merge_, exact.add_, frame_, sum_growth(ranks)};
  if (!knows_frame_) {
    // Two bounds approximate a line well enough.
    constexpr double small = 1 << 14, large = 1 << 20;
    w.frame.slope = (bound_bytes(large) - bound_bytes(small)) / (large - small);
    w.frame.base = bound_bytes(small) - w.frame.slope * small;
    w.frame.floor = 1;
  }
  w.frame = w.frame.scaled(size_factor_);
  return w;
}

plan_work plan_work::scaled(double time, double size) const {
  plan_work w = *this;
  w.encode_ = encode_.scaled(time), w.first_ = first_.scaled(time), w.merge_ = merge_.scaled(time);
  w.add_ = add_.scaled(time);
  w.size_factor_ *= size;
  return w;
}

void plan_work::note_range(double low, double high, note_list& notes) const {
  // One note for plans with equal ranges.
  const auto check = [&](const curve& c) {
    if (c.to <= 0 || (low >= c.from / 1.001 && high <= c.to * 1.001)) return;
    notes.insert(fmt::format(
        "extrapolation: plans were measured from {:.0f} to {:.0f} elements, and are used from {:.0f} to {:.0f}", c.from,
        c.to, low, high));
  };
  check(encode_);
  check(first_);
  check(merge_);
  if (knows_frame_) check(frame_);
}

}  // namespace dr::predict
