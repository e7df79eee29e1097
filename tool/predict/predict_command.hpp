// `deepreduce predict`: the step of a training for every way to exchange gradients.
#pragma once

#include <nlohmann/json.hpp>

#include "predict_case.hpp"

namespace dr::predict {

inline constexpr const char* prediction_schema = "deepreduce-prediction-1";

// The exit status: 0; 77: no plan can be modelled. Throws compare's input_error, usage_error and output_error.
int run_predict(const predict_options& o);

// The members that both commands write: profile, model, link, ranks, hook.
nlohmann::ordered_json case_json(const predict_case& c, const case_options& o);
nlohmann::ordered_json outcome_json(const outcome& o);  // times in ns
// Rounded; null if not finite or too large.
nlohmann::ordered_json rounded_json(double x);
// The ends of a range, in `unit`s. JSON has no infinity: "always" is a range without ends; one with a lower end only has no upper.
nlohmann::ordered_json upper_json(const paying_range& r, double unit = 1);
nlohmann::ordered_json lower_json(const paying_range& r, double unit = 1);
// Invalid UTF-8 in file names is replaced.
std::string json_text(const nlohmann::ordered_json& document);
candidate book_candidate(const std::string& path, predict_case& c);

}  // namespace dr::predict
