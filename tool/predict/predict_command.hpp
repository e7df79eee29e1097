// `deepreduce predict`: the step of a training by each way to exchange its gradients.
#pragma once

#include <nlohmann/json.hpp>

#include "predict_case.hpp"

namespace dr::predict {

inline constexpr const char* prediction_schema = "deepreduce-prediction-1";

// The exit status: 0; 77: no plan can be modelled. Throws compare's input_error, usage_error and output_error.
int run_predict(const predict_options& o);

// Of a case what both commands tell: profile, model, link, ranks, hook.
nlohmann::ordered_json case_json(const predict_case& c, const case_options& o);
nlohmann::ordered_json outcome_json(const outcome& o);  // times in ns
// A whole number; null for one that is none, or too large.
nlohmann::ordered_json rounded_json(double x);
// Bytes of file names that are no UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& document);
candidate book_candidate(const std::string& path, predict_case& c);

}  // namespace dr::predict
