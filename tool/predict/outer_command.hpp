// `deepreduce predict --every`: the round of an outer loop for every plan.
#pragma once

#include "predict_options.hpp"

namespace dr::predict {

inline constexpr const char* rounds_schema = "deepreduce-rounds-1";

// The exit status, and what it throws: as run_predict.
int run_rounds(const predict_options& o);

}  // namespace dr::predict
