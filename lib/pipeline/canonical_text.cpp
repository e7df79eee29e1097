// The canonical text of a plan: equal for equivalent plans.
#include "core/registry.hpp"
#include "pipeline/bind.hpp"
#include "plan/named_plans.hpp"

namespace dr {
namespace {

plan_call canonical_call(const bound_stage& stage) {
  plan_call call{plan_name(*stage.codec), {}};
  for (size_t p = 0; p < stage.codec->param_count; ++p) {
    const dr_param& param = *dr_param_at(stage.codec->params, p);
    const double number = stage.values[p].number;
    if (!param.required && number == param.fallback) continue;
    std::string text = print_number(number);
    if (param.type == DR_PARAM_CHOICE)
      each_choice(param.choices, [&](std::string_view choice, double i) {
        if (i == number) text = choice;
      });
    call.arguments.push_back({param.name, std::move(text)});
  }
  return call;
}

plan_call canonical_exchange(const exchange_stage& e) {
  plan_call call{exchange_names[static_cast<size_t>(e.kind)], {}};
  if (e.kind == exchange_kind::hierarchy) call.arguments.push_back({"inner", print_number(e.inner)});
  if (e.parts != 1) call.arguments.push_back({"parts", print_number(e.parts)});
  return call;
}

std::string canonical_transform(const plan& p) {
  std::vector<plan_stage> stages{{"transform", {{"lowrank", {{"rank", print_number(p.transform.rank)}}}}}};
  if (p.keeps_feedback()) stages.push_back({"feedback", {canonical_call(p.feedback)}});
  return print_plan(stages);
}

}  // namespace

std::string canonical_text(const plan& p) {
  if (p.transforms()) return canonical_transform(p);
  std::vector<plan_stage> stages;
  const auto add = [&](const char* role, const std::vector<bound_stage>& list) {
    plan_stage& stage = stages.emplace_back(plan_stage{role, {}});
    for (const bound_stage& s : list) stage.calls.push_back(canonical_call(s));
  };
  if (p.sparsify.codec->id != default_sparsifier) add("sparsify", {p.sparsify});
  if (p.keeps_feedback()) add("feedback", {p.feedback});
  if (p.index_choices.empty())
    add("index", p.index);
  else
    stages.push_back({"index", {{"auto", {}}}});
  if (p.value_choices.empty())
    add("value", p.value);
  else
    stages.push_back({"value", {{"auto", {{"error", print_number(p.value_error)}}}}});
  if (p.order.size() > 1 || (p.order.size() == 1 && canonical_call(p.order[0]).name != "bitpack"))
    add("order", p.order);
  if (!p.regather) stages.push_back({"regather", {{"off", {}}}});
  if (p.flat) stages.push_back({"bucket", {{"flat", {}}}});
  if (p.votes) stages.push_back({"merge", {{"vote", {}}}});
  if (plan_call call = canonical_exchange(p.exchange); call.name != exchange_names[0] || !call.arguments.empty())
    stages.push_back({"exchange", {std::move(call)}});
  return print_plan(stages);
}

}  // namespace dr
