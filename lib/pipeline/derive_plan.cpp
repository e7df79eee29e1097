#include <algorithm>

#include "core/codec_notes.hpp"
#include "core/registry.hpp"
#include "pipeline/bind.hpp"
#include "plan/named_plans.hpp"
#include "plan/syntax.hpp"

namespace dr {
namespace {

// The stage `feedback` of a plan; nullptr: it has none.
dr_status read_feedback(const plan& method, std::vector<plan_stage>& stages, plan_stage*& feedback, dr_error& error) {
  if (const dr_status s = parse_plan(method.text, stages, error)) return s;
  const auto found =
      std::find_if(stages.begin(), stages.end(), [](const plan_stage& s) { return s.role == "feedback"; });
  feedback = found == stages.end() ? nullptr : &*found;
  return DR_OK;
}

// The index codec for rows if the plan's codec does not code arbitrary lists: the first that auto tries.
std::string list_codec() {
  for (const codec_notes* notes : builtin_notes())
    if (is_candidate(*notes, DR_ROLE_INDEX)) return notes->codec->name;
  return find_codec(DR_ROLE_INDEX, default_codec)->name;
}

}  // namespace

dr_status bind_exact(const std::shared_ptr<const plan>& of, std::shared_ptr<const plan>& out, dr_error& error) {
  const plan& method = *of;
  out = of;
  if (method.votes || method.transforms()) return DR_OK;
  std::vector<plan_stage> stages, exact;
  plan_stage* feedback = nullptr;
  if (const dr_status s = parse_plan(exact_plan, exact, error)) return s;
  if (const dr_status s = read_feedback(method, stages, feedback, error)) return s;
  if (feedback) {
    std::vector<plan_argument>& given = feedback->calls[0].arguments;
    if (const feedback_kind& kind = method.feedback_rule().kind; kind.whole_param) {
      std::erase_if(given, [&](const plan_argument& a) { return a.key == kind.whole_param; });
      if (kind.whole_value) given.push_back({kind.whole_param, kind.whole_value});
    }
    exact.push_back(*feedback);
  }
  // (The state of a plan with tiles holds coefficients.)
  if (method.has_tiles()) exact.push_back(*std::ranges::find(stages, "transform", &plan_stage::role));
  return bind_plan(print_plan(exact), out, error);
}

dr_status bind_flat(std::shared_ptr<const plan>& out, dr_error& error) {
  return bind_plan(std::string(exact_plan) + " bucket=flat", out, error);
}

dr_status bind_rows(const plan& method, std::shared_ptr<const plan>& out, dr_error& error) {
  if (method.votes)
    return fail(error, DR_E_UNSUPPORTED, "plan: merge=vote has votes of all elements, not of the rows of a step");
  if (method.keeps_momentum())
    return fail(error, DR_E_UNSUPPORTED,
                "plan: feedback=%s keeps a momentum of all elements, not of the rows of a step",
                method.feedback.codec->name);
  std::vector<plan_stage> stages;
  if (const dr_status s = parse_plan(method.text, stages, error)) return s;
  std::erase_if(stages,
                [](const plan_stage& s) { return s.role != "index" && s.role != "value" && s.role != "order"; });
  if (method.transforms()) stages.clear();
  const auto index = std::find_if(stages.begin(), stages.end(), [](const plan_stage& s) { return s.role == "index"; });
  if (index == stages.end())
    stages.push_back({"index", {{list_codec(), {}}}});
  else if (method.index[0].codec->traits & DR_REPLACES_SUPPORT)
    index->calls = {{list_codec(), {}}};
  return bind_plan(print_plan(stages), out, error);
}

dr_status bind_sum(const std::shared_ptr<const plan>& method, std::shared_ptr<const plan>& out, dr_error& error) {
  if (method->votes) return bind_plan(std::string(signs_plan) + (method->flat ? " bucket=flat" : ""), out, error);
  out = method;
  const char* const weight = method->keeps_feedback() ? method->feedback_rule().kind.weight_param : nullptr;
  const bool weighs = weight && method->feedback_rule().weights().gamma != 1;
  if (!method->keeps_momentum() && !weighs) return DR_OK;
  std::vector<plan_stage> stages;
  plan_stage* feedback = nullptr;
  if (const dr_status s = read_feedback(*method, stages, feedback, error)) return s;
  if (method->keeps_momentum())
    feedback->calls[0] = {method->keeps_residual() ? plain_feedback() : "none", {}};
  else
    std::erase_if(feedback->calls[0].arguments, [&](const plan_argument& a) { return a.key == weight; });
  return bind_plan(print_plan(stages), out, error);
}

}  // namespace dr
