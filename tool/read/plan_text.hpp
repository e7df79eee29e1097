// The parts of a plan's canonical text, and the traits of its codecs.
#pragma once

#include <string>
#include <string_view>

#include "deepreduce/codec.h"

namespace dr::compare {

struct plan_reading {
  std::string text;
  std::string sparsify;          // its stage, "sparsify=none" where the text has none
  std::string without_sparsify;  // the rest of the text
  std::string without_exchange;  // the text but for its exchange
  std::string feedback;          // its stage, "" where the text has none
  std::string exchange;          // "exchange=…", or ""
  std::string transform;         // "transform=…", or ""
  double gamma = 1;              // feedback's weight of the gradient
  bool sparsifies = false, exact_index = false, exact_value = false;
  bool regather = true;
  bool coefficients = false;  // of a cosine transform are in its frames
};

// `text` as returned by dr_plan_text.
plan_reading read_plan(std::string_view text);

const char* role_name(dr_role role);                              // "index"; "?" for one it does not know
const dr_codec* find_codec(dr_role role, std::string_view name);  // by its name in plans; NULL: unknown
std::string plan_name(const dr_codec& codec);                     // "zigzag"; "plugin.rice" where a built-in is rice

}  // namespace dr::compare
