#include <algorithm>

#include "pipeline/bind.hpp"
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

}  // namespace

dr_status bind_exact(const std::shared_ptr<const plan>& of, std::shared_ptr<const plan>& out, dr_error& error) {
  const plan& method = *of;
  out = of;
  if (method.votes || method.transforms()) return DR_OK;
  std::vector<plan_stage> stages, exact;
  plan_stage* feedback = nullptr;
  if (const dr_status s = parse_plan("index=all value=raw", exact, error)) return s;
  if (const dr_status s = read_feedback(method, stages, feedback, error)) return s;
  if (feedback) {
    std::vector<plan_argument>& given = feedback->calls[0].arguments;
    if (const feedback_kind& kind = method.feedback_rule().kind; kind.whole_param) {
      std::erase_if(given, [&](const plan_argument& a) { return a.key == kind.whole_param; });
      if (kind.whole_value) given.push_back({kind.whole_param, kind.whole_value});
    }
    exact.push_back(*feedback);
  }
  return bind_plan(print_plan(exact), out, error);
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
    stages.push_back({"index", {{"golomb", {}}}});
  else if (method.index[0].codec->traits & DR_REPLACES_SUPPORT)
    index->calls = {{"golomb", {}}};
  return bind_plan(print_plan(stages), out, error);
}

dr_status bind_sum(const std::shared_ptr<const plan>& method, std::shared_ptr<const plan>& out, dr_error& error) {
  if (method->votes)
    return bind_plan(method->flat ? "index=all value=sign bucket=flat" : "index=all value=sign", out, error);
  out = method;
  if (!method->keeps_momentum()) return DR_OK;
  std::vector<plan_stage> stages;
  plan_stage* feedback = nullptr;
  if (const dr_status s = read_feedback(*method, stages, feedback, error)) return s;
  feedback->calls[0] = {method->keeps_residual() ? "residual" : "none", {}};
  return bind_plan(print_plan(stages), out, error);
}

}  // namespace dr
