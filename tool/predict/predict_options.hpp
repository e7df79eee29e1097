// The command lines of `predict` and `plan` as structs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "link_text.hpp"

namespace CLI {
class App;  // its header takes seconds to compile
}

namespace dr::predict {

// Options of both commands: costs, model, machine.
struct case_options {
  std::string profile, model, sizes, input;
  std::string link_text, hook = "ddp", forward, backward, rest, skew, hook_time;
  std::optional<link> over;                                   // none: the profile's
  uint32_t ranks = 0, ranks_per_host = 0;                     // 0: of the profile's link
  std::optional<uint32_t> bypass;                             // none: the plan's default
  double batch = 0, bucket_mb = 25, slowdown = 0, flops = 0;  // 0: of the model and the profile
  std::vector<std::string> plans, presets, exchanges, plugins;
  std::vector<std::string> errors;  // "PLAN: 0.3"
  std::string error_rows;           // saved rows of `compare`
  uint64_t limit = 1000;
};

struct predict_options {
  case_options what;
  std::vector<std::string> books, what_ifs;
  std::vector<uint32_t> powersgd;
  std::vector<uint32_t> every;  // steps of a round of an outer loop; none: each step exchanges
  bool folder = false;          // the workers of an outer loop share a Folder
  std::string form, output, trace, timeline, curves, show;
  bool break_even = true;  // (form: of --format, else by the suffix of output)
};

struct plan_options {
  case_options what;
  std::optional<double> error_budget;
  std::string output, form;
};

void add_predict(CLI::App& app, predict_options& o);
void add_plan(CLI::App& app, plan_options& o);

}  // namespace dr::predict
