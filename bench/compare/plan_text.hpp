// What the canonical text of a plan says, with what the list of codecs says of the names in it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "deepreduce/codec.h"

namespace dr::compare {

struct plan_part {
  std::string name;
  std::map<std::string, std::string> arguments;
};

struct plan_stage {
  std::string text, role;
  std::vector<plan_part> parts;  // name(arguments) + name(arguments) …
};

struct plan_reading {
  std::string text;
  plan_stage sparsify;
  std::string without_sparsify;  // the rest of the text
  bool exact_index = false, exact_value = false;
  bool regather = true, feedback = false;
};

// `text` as dr_plan_text gives it.
plan_reading read_plan(std::string_view text);

const char* role_name(dr_role role);                              // "index"; "?" for one it does not know
const dr_codec* find_codec(dr_role role, std::string_view name);  // NULL: there is none

// A number that the part was given, or its declared default; 0 if there is no such parameter.
double number_argument(const plan_part& part, dr_role role, std::string_view name);

}  // namespace dr::compare
