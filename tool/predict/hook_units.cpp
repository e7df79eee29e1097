#include "hook_units.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace dr::predict {

const std::vector<hook_unit>& hook_units::of(const training& t, std::span<const plan_work* const> choice,
                                             std::optional<double> dense_below) {
  question now;
  now.dense_below = dense_below;
  for (size_t i = 0; i < t.tensors.size(); ++i) {
    now.plans.push_back(choice[i] ? choice[i]->method()->get() : nullptr);
    now.elements.push_back(t.tensors[i].elements);
  }
  if (now == asked_) return units_;

  // The hook's tensors are the model's, the last one first. (Their names matter to nothing but random numbers.)
  const size_t n = t.tensors.size();
  std::vector<std::string> names;
  std::vector<dr_named_tensor> tensors;
  std::set<const plan_work*> works;
  for (size_t i = 0; i < n; ++i) names.push_back(std::to_string(i));
  for (size_t i = n; i-- > 0;) {
    auto named = sized<dr_named_tensor>();
    named.name = names[i].c_str();
    named.dtype = DR_F32;
    named.elements = static_cast<uint64_t>(t.tensors[i].elements);
    named.plan = now.plans[i];
    tensors.push_back(named);
    if (choice[i]) works.insert(choice[i]);
  }
  auto options = sized<dr_sender_options>();
  options.flags = DR_SENDER_DRY | DR_SENDER_HALVES;
  options.dense_below = dense_below ? static_cast<uint64_t>(*dense_below) : DR_DENSE_BELOW_BY_PLAN;
  const sender dry = [&] {
    try {
      return sender(context_, nullptr, tensors, options);
    } catch (const error& e) {
      throw unsupported_model(std::string("unsupported: the hook's sender: ") + e.detail.message);
    }
  }();

  // By the plan that is sent and that of the tensor's line: {exact, flat}.
  std::map<std::pair<std::string_view, const plan_work*>, std::pair<bool, bool>> known;
  const auto how_sent = [&](size_t position, const plan_work* work) {
    const dr_plan* const sent = dry.tensor(position).plan;
    const auto [at, fresh] = known.try_emplace({dr_plan_text(sent), work}, false, false);
    if (fresh) {
      auto about = sized<dr_plan_info>();
      detail::require([&](dr_error* e) { return dr_plan_describe(sent, &about, e); });
      at->second = {!work || bare_plan(dr_plan_text(sent)) != bare_plan(work->text()), about.flags & DR_PLAN_FLAT};
    }
    return at->second;
  };
  units_.assign(dry.info().units, {});
  for (size_t u = 0; u < units_.size(); ++u) {
    const dr_unit_info info = dry.unit(u);
    units_[u].kind = info.kind, units_[u].frames = info.frames;
    for (const uint32_t sent : std::span(info.tensors, info.count)) {
      const size_t position = n - 1 - sent;
      const auto [exact, flat] = how_sent(sent, choice[position]);
      units_[u].tensors.push_back({position, exact, flat});
    }
  }
  asked_ = std::move(now);
  alive_.clear();
  for (const plan_work* const w : works) alive_.push_back(w->method());
  return units_;
}

bool is_exact(const plan_work& work, double elements, std::optional<double> dense_below) {
  training one;
  one.tensors.emplace_back().elements = elements;
  const plan_work* const choice[] = {&work};
  static thread_local hook_units units;
  return units.of(one, choice, dense_below)[0].tensors[0].exact;
}

}  // namespace dr::predict
