// The declared parameters of a name in a plan: of a codec, or of a word that is not a codec (stage_words.hpp).
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "plan/syntax.hpp"

namespace dr {

// The parameters that a name of a plan accepts.
struct declared_params {
  const char* name;  // for errors
  const dr_param* params;
  size_t count;
};

// The value that a text is of a parameter of `name`. ARGUMENT: of another type, or out of range.
dr_status bind_value(const char* name, const dr_param& param, const std::string& text, dr_value& out, dr_error& error);

// One value for each declared parameter: the plan's, or its default. ARGUMENT: an unknown parameter, a value of
// another type or out of range, or a missing required parameter.
dr_status bind_arguments(const declared_params& of, const std::vector<plan_argument>& arguments,
                         std::vector<dr_value>& out, dr_error& error);

// A value in the canonical text: "p0", or the shortest number.
std::string value_text(const dr_param& param, double number);
inline bool is_default(const dr_param& param, double number) { return !param.required && number == param.fallback; }

// The choices of a parameter, "p0|leftmost", one by one.
template <class F>
void each_choice(const char* choices, F&& f) {
  const std::string_view all(choices);
  size_t begin = 0;
  for (double number = 0; begin <= all.size(); ++number) {
    const size_t end = std::min(all.find('|', begin), all.size());
    f(all.substr(begin, end - begin), number);
    begin = end + 1;
  }
}

}  // namespace dr
