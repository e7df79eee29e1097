// The text of a plan as a tree, and back; independent of the codecs, which only errors look up for hints.
//   plan = stage (space stage)*      stage = role "=" call ("+" call)*
//   call = ["plugin."] name [ "(" [ key "=" value ("," key "=" value)* ] ")" ]
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace dr {

struct plan_argument {
  std::string key, value;
};
struct plan_call {
  std::string name;
  std::vector<plan_argument> arguments;
};
struct plan_stage {
  std::string role;
  std::vector<plan_call> calls;
};

// ARGUMENT, with the column of the first syntax error.
dr_status parse_plan(std::string_view text, std::vector<plan_stage>& stages, dr_error& error);

std::string print_plan(const std::vector<plan_stage>& stages);

// Shortest text that reads back as the same number; never depends on the locale.
std::string print_number(double number);
// Reads all of `text` as a finite number.
bool read_number(std::string_view text, double& number);

}  // namespace dr
