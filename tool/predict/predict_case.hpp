// From options to a model and its candidates.
#pragma once

#include <memory>

#include "predict_options.hpp"
#include "step_model.hpp"

namespace dr::predict {

// Owns the data that the model refers to.
struct predict_case {
  std::unique_ptr<profile> costs;
  step_model model;
  double shared = 1;        // factor on computing: ranks share cores
  std::string link_source;  // "stated", or the origin of the profile's link
  note_list notes;
};

// The files that the options name; "" where they name none.
std::vector<std::string> files_of(const case_options& o);

// Throws compare::input_error and compare::usage_error.
predict_case read_case(const case_options& o);

// A plan with its costs in this case. Throws std::runtime_error: the profile has none.
std::shared_ptr<const plan_work> read_work(predict_case& c, const std::string& text);

// The plans of the options, else of the profile, with their costs.
std::vector<std::shared_ptr<const plan_work>> read_works(const case_options& o, predict_case& c);

}  // namespace dr::predict
