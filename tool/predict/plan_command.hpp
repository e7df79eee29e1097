// `deepreduce plan`: writes the plan book of a training.
#pragma once

#include "predict_case.hpp"

namespace dr::predict {

// The exit status: 0. Throws compare's input_error, usage_error and output_error.
int run_plan(const plan_options& o);

}  // namespace dr::predict
