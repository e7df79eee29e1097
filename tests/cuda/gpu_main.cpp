// Runs the tests of the GPU where there is one (or where the CPU plays it), and says how they can be run on it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "cuda/gpu_case.hpp"

int main(int argc, char** argv) {
  if (const std::string why = place::absent(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 77;
  }
  std::printf("on %s; %s sizes\n", place::describe().c_str(), client::only_small() ? "small" : "all");
  doctest::Context context(argc, argv);
  const int status = context.run();
  const std::string trouble = place::trouble();
  if (!trouble.empty()) std::printf("CUDA, at the end: %s\n", trouble.c_str());
  std::printf("%llu round trips\n", static_cast<unsigned long long>(client::round_trips));
  return status ? status : !trouble.empty();
}
