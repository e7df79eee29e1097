// What plans lose of a gradient in a step: relative errors |g - c| / |g|, of a tensor where rows of `compare` have them,
// else of a plan.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan_work.hpp"
#include "predict_options.hpp"
#include "step_model.hpp"

namespace dr::predict {

class error_table {
 public:
  // Of the options, else of the profile, else none. Throws compare's usage_error and input_error.
  error_table(const case_options& o, const profile& costs);

  // NaN: not known. `plan`: canonical. Without an error of a plan with feedback that of the plan without: it is the first
  // step's. What it rests on is noted.
  double of(const std::string& plan, const std::string& tensor, note_list& notes) const;

  // Throws usage_error for an error that was given for what is not among the plans.
  void check_candidates(const std::vector<std::shared_ptr<const plan_work>>& works) const;

  bool has_rows() const { return !rows_.empty(); }

 private:
  double known_of(const std::string& key, const std::string& tensor, note_list& notes) const;
  void read_rows();

  // By elements.
  struct mean_error {
    double squares = 0, elements = 0;
    double error() const;
  };

  std::string rows_;  // the file
  std::map<std::string, double> given_, of_tensor_, of_profile_;
  std::map<std::string, mean_error> sums_;
};

// Of a choice for the tensors of a model: of the whole and of the worst one. Dense tensors, and those that the DDP hook
// sends exactly, have none.
struct choice_error {
  double mean = 0;           // root of the mean of squares, weighted by elements; NaN: one is not known
  double largest = 0;        // NaN likewise
  const tensor_spec* worst;  // nullptr: all are exact, or one is not known
};
choice_error error_of(const step_model& m, const candidate& c, const error_table& errors, note_list& notes);

// Whether the tensor travels exactly, whatever its plan.
bool travels_exactly(const step_model& m, const tensor_spec& t, const plan_work& w);

}  // namespace dr::predict
