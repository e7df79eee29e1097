#include "control/control_options.hpp"

#include <string>

#include "plan/syntax.hpp"

namespace dr {
namespace {

constexpr std::string_view role = "control=";

struct reader {
  const std::string& law;
  dr_error& error;

  dr_status not_a(const plan_argument& a, const char* what) {
    return fail(error, DR_E_ARGUMENT, "control: %s(%s=%.40s): %s expected", law.c_str(), a.key.c_str(), a.value.c_str(),
                what);
  }
  dr_status number(const plan_argument& a, double smallest, double largest, bool open, double& to) {
    double value = 0;
    if (!read_number(a.value, value)) return not_a(a, "a number");
    if (value < smallest || value > largest || (open && value == smallest))
      return fail(error, DR_E_ARGUMENT, "control: %s(%s=%.40s) is not %s %g%s%g", law.c_str(), a.key.c_str(),
                  a.value.c_str(), open ? "above" : "in", smallest, open ? ", up to " : " … ", largest);
    to = value;
    return DR_OK;
  }
  dr_status count(const plan_argument& a, uint32_t smallest, uint32_t largest, uint32_t& to) {
    double value = 0;
    if (const dr_status s = number(a, smallest, largest, false, value)) return s;
    to = static_cast<uint32_t>(value);
    return to == value ? DR_OK : not_a(a, "a whole number");
  }
  dr_status choice(const plan_argument& a, rank_choice& to) {
    if (a.value == "min")
      to = rank_choice::least;
    else if (a.value == "mean")
      to = rank_choice::mean;
    else if (a.value == "max")
      to = rank_choice::largest;
    else
      return not_a(a, "min, mean or max");
    return DR_OK;
  }
};

}  // namespace

dr_status read_control_options(std::string_view text, uint32_t rungs, control_options& out, dr_error& error) {
  std::string whole(text);
  if (!text.starts_with(role)) whole.insert(0, role);
  std::vector<plan_stage> stages;
  if (const dr_status s = parse_plan(whole, stages, error))
    return prefix(error, "control: '%.80s': ", whole.c_str()), s;
  if (stages.size() != 1 || stages[0].role != "control" || stages[0].calls.size() != 1)
    return fail(error, DR_E_ARGUMENT, "control: '%.80s' is not one law, aimd(…), fit(…) or steps(…)", whole.c_str());
  const plan_call& call = stages[0].calls[0];
  control_options o;
  if (call.name == "fit")
    o.law = control_law::fit;
  else if (call.name == "steps")
    o.law = control_law::steps;
  else if (call.name != "aimd")
    return fail(error, DR_E_ARGUMENT, "control: no law '%.40s'; there are aimd, fit and steps", call.name.c_str());
  const bool aimd = o.law == control_law::aimd, fit = o.law == control_law::fit, timed = aimd || fit;
  o.smallest = rungs - 1;
  double target_ms = 0;
  bool has_start = false, has_each = false;
  reader read{call.name, error};
  for (const plan_argument& a : call.arguments) {
    const std::string& k = a.key;
    const dr_status s = k == "densest"              ? read.count(a, 0, rungs - 1, o.densest)
                        : k == "smallest"           ? read.count(a, 0, rungs - 1, o.smallest)
                        : k == "each" && !timed     ? (has_each = true, read.count(a, 1, 1'000'000'000, o.interval))
                        : k == "target_ms" && timed ? read.number(a, 0, 1e9, true, target_ms)
                        : k == "band" && timed      ? read.number(a, 0, 0.9, false, o.band)
                        : k == "interval" && timed  ? read.count(a, 1, 1'000'000, o.interval)
                        : k == "window" && timed    ? read.count(a, 1, control_window_max, o.window)
                        : k == "increase" && aimd   ? read.number(a, 0, 1, true, o.increase)
                        : k == "decrease" && aimd   ? read.number(a, 0.01, 0.99, false, o.decrease)
                        : k == "samples" && fit     ? read.count(a, 2, control_samples_max, o.samples)
                        : k == "patience" && timed  ? read.count(a, 1, 1'000'000, o.patience)
                        : k == "retry" && timed     ? read.count(a, 0, 1'000'000'000, o.retry)
                        : k == "start" && timed     ? (has_start = true, read.count(a, 0, rungs - 1, o.start))
                        : k == "share" && timed     ? read.number(a, 0, 1, false, o.share)
                        : k == "agree" && timed     ? read.choice(a, o.agree)
                                                    : fail(error, DR_E_ARGUMENT, "control: %s has no option '%.40s'",
                                                           call.name.c_str(), k.c_str());
    if (s) return s;
  }
  if (!timed && !has_each)
    return fail(error, DR_E_ARGUMENT, "control: steps(each=…) is missing: after how many steps comes the next rung?");
  if (timed && target_ms == 0)
    return fail(error, DR_E_ARGUMENT, "control: %s(target_ms=…) is missing: how long may transfers of a step take?",
                call.name.c_str());
  if (o.densest > o.smallest)
    return fail(error, DR_E_ARGUMENT, "control: densest=%u exceeds smallest=%u", o.densest, o.smallest);
  if (!has_start) o.start = o.densest;
  if (o.start < o.densest || o.start > o.smallest)
    return fail(error, DR_E_ARGUMENT, "control: start=%u is not in densest=%u … smallest=%u", o.start, o.densest,
                o.smallest);
  o.target_ns = target_ms * 1e6;
  out = o;
  return DR_OK;
}

}  // namespace dr
