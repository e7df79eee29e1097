// The command line of `test-plugin` as a struct.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;  // its header takes seconds to compile
}

namespace dr::plugin_test {

struct test_plugin_options {
  std::string path;
  uint64_t seed = 1;
  double seconds = 10;
};

void add_test_plugin(CLI::App& app, test_plugin_options& o);

// Returns the exit status: 0; 1: a broken promise.
int run_test_plugin(const test_plugin_options& o);

}  // namespace dr::plugin_test
