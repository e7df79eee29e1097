// From options to a model and its candidates.
#pragma once

#include <memory>

#include "predict_options.hpp"
#include "step_model.hpp"

namespace dr::predict {

// Holds what the model points to.
struct predict_case {
  std::unique_ptr<profile> costs;
  step_model model;
  double shared = 1;        // computing takes so many times what the profile says: ranks share cores
  std::string link_source;  // "stated", or where the profile's was measured
  note_list notes;
};

// Throws compare::input_error and compare::usage_error.
predict_case read_case(const case_options& o);

// A plan with its costs in this case. Throws std::runtime_error: the profile has none.
std::shared_ptr<const plan_work> read_work(predict_case& c, const std::string& text);

// Of the plans that the options name, else of the profile's: each with its costs.
std::vector<std::shared_ptr<const plan_work>> read_works(const case_options& o, predict_case& c);

}  // namespace dr::predict
