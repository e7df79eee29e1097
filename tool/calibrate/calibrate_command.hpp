// `deepreduce calibrate`: the costs of plans on this machine, as a profile (docs/profile.schema.json). The links of ranks
// are measured by the Python package, bindings/python/deepreduce/calibrating.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dr::calibrate {

struct calibrate_options {
  std::string output;                             // "": stdout
  std::vector<std::string> plans, presets, data;  // none: those of compare, the bundled gradients
  std::vector<std::string> plugins;
  std::vector<uint64_t> sizes;  // none: 2^10, 2^12, … 2^22 elements
  double seconds = 0.15;        // of rounds, per plan and size
  uint64_t seed = 0;
  uint32_t threads = 0, ranks = 1;
  uint32_t evicted_mib = 8;
};

void add_calibrate(CLI::App& app, calibrate_options& options);

// Returns an exit status. Throws compare::usage_error, input_error and output_error.
int run_calibrate(const calibrate_options& options);

}  // namespace dr::calibrate
