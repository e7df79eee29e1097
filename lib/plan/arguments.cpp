#include "plan/arguments.hpp"

#include <cmath>

#include "plan/suggestions.hpp"

namespace dr {
namespace {

dr_status unknown(const declared_params& of, const std::string& key, dr_error& error) {
  std::string known;
  std::vector<std::string_view> names;
  for (size_t i = 0; i < of.count; ++i) {
    known += i ? ", " : "";
    known += names.emplace_back(dr_param_at(of.params, i)->name);
  }
  if (const std::string near = nearest(key, names); !near.empty())
    return fail(error, DR_E_ARGUMENT, "plan: %s has no parameter '%s'; is it '%s'?", of.name, key.c_str(),
                near.c_str());
  return fail(error, DR_E_ARGUMENT, "plan: %s has no parameter '%s'; it has: %s", of.name, key.c_str(),
              known.empty() ? "none" : known.c_str());
}

}  // namespace

dr_status bind_value(const char* name, const dr_param& param, const std::string& text, dr_value& out, dr_error& error) {
  out.given = 1;
  if (param.type == DR_PARAM_CHOICE) {
    bool found = false;
    each_choice(param.choices, [&](std::string_view choice, double number) {
      if (choice != text) return;
      found = true;
      out.number = number;
    });
    if (found) return DR_OK;
    return fail(error, DR_E_ARGUMENT, "plan: %s(%s=%s): not one of %s", name, param.name, text.c_str(), param.choices);
  }
  if (!read_number(text, out.number))
    return fail(error, DR_E_ARGUMENT, "plan: %s(%s=%s): not a number", name, param.name, text.c_str());
  if (out.number == 0) out.number = 0;  // -0 is printed as 0
  if (param.type == DR_PARAM_INT && out.number != std::floor(out.number))
    return fail(error, DR_E_ARGUMENT, "plan: %s(%s=%s): not an integer", name, param.name, text.c_str());
  if (out.number < param.minimum || out.number > param.maximum)
    return fail(error, DR_E_ARGUMENT, "plan: %s(%s=%s): not in %s … %s", name, param.name, text.c_str(),
                print_number(param.minimum).c_str(), print_number(param.maximum).c_str());
  return DR_OK;
}

dr_status bind_arguments(const declared_params& of, const std::vector<plan_argument>& arguments,
                         std::vector<dr_value>& out, dr_error& error) {
  out.clear();
  for (size_t i = 0; i < of.count; ++i) out.push_back({sizeof(dr_value), 0, 0, dr_param_at(of.params, i)->fallback});
  for (const plan_argument& a : arguments) {
    size_t p = 0;
    while (p < of.count && a.key != dr_param_at(of.params, p)->name) ++p;
    if (p == of.count) return unknown(of, a.key, error);
    if (const dr_status s = bind_value(of.name, *dr_param_at(of.params, p), a.value, out[p], error)) return s;
  }
  for (size_t p = 0; p < of.count; ++p)
    if (const dr_param& param = *dr_param_at(of.params, p); param.required && !out[p].given)
      return fail(error, DR_E_ARGUMENT, "plan: %s needs %s=…, %s", of.name, param.name, param.summary);
  return DR_OK;
}

std::string value_text(const dr_param& param, double number) {
  std::string text = print_number(number);
  if (param.type == DR_PARAM_CHOICE)
    each_choice(param.choices, [&](std::string_view choice, double i) {
      if (i == number) text = choice;
    });
  return text;
}

}  // namespace dr
