// The plans, inputs and plug-ins of a command line: sweeps expanded; plans parsed, each once.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "deepreduce/deepreduce.hpp"

namespace dr::compare {

// An error of the command line: exit status 2.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

plan parse_plan(const std::string& text);  // throws usage_error

// Texts of --plan, sweeps (plan_sweep.hpp) among them, as canonical texts, each once, in their order. Throws usage_error: a sweep that
// is invalid, more than `limit` texts before duplicates are dropped, or an invalid plan, shown after expansion.
std::vector<std::string> expand_plans(const std::vector<std::string>& texts, size_t limit);

// Inputs, of which `synth:` texts may be sweeps. Throws usage_error as expand_plans does.
std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs, size_t limit);

// Throws usage_error, which begins with `what`.
void load_plugins(const std::vector<std::string>& paths, const std::string& what = "--plugin ");

}  // namespace dr::compare
