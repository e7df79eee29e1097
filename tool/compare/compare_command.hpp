// `deepreduce compare`: what is measured or read, selected and written.
#pragma once

#include "compare_options.hpp"

namespace dr::compare {

// Returns the exit status: 0; 1: a plan failed, or with --fail-if-worse a row got worse; 130: Ctrl-C, with what was finished written.
int run_compare(const compare_options& options);

}  // namespace dr::compare
