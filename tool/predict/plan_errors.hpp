// Relative errors |g - c| / |g| of plans in a step: per tensor if rows of `compare` have them, else per plan.
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
  // From the options, else from the profile, else none. tensors: of the model. Throws compare's usage_error and input_error.
  error_table(const case_options& o, const profile& costs, size_t tensors);

  // NaN: unknown. `plan`: canonical. For a plan with feedback it falls back to the plan without, whose error is that of the
  // first step, and adds a note.
  double of(const std::string& plan, const std::string& tensor, note_list& notes) const;

  // Throws usage_error for an --error of a plan that is not a candidate.
  void check_candidates(const std::vector<std::shared_ptr<const plan_work>>& works) const;

  bool has_rows() const { return !rows_.empty(); }

 private:
  double known_of(const std::string& key, const std::string& tensor, note_list& notes) const;
  void read_rows(size_t tensors);

  // Weighted by elements.
  struct mean_error {
    double squares = 0, elements = 0;
    double error() const;
  };

  std::string rows_;     // the file
  bool joined_ = false;  // it has rows of joined tensors, and the model has several tensors
  std::map<std::string, double> given_, of_tensor_, of_profile_;
  std::map<std::string, mean_error> sums_;
};

// The errors of a choice: of the whole model and of the worst tensor. Dense tensors, and those that the DDP hook sends
// exactly, have error 0.
struct choice_error {
  double mean = 0;           // root mean square over elements; NaN: one is unknown
  double largest = 0;        // NaN: one is unknown
  const tensor_spec* worst;  // nullptr: all are exact, or one is unknown
};
choice_error error_of(const step_model& m, const candidate& c, const error_table& errors, note_list& notes);

// Whether the tensor is sent exactly, whatever its plan.
bool travels_exactly(const step_model& m, const tensor_spec& t, const plan_work& w);

}  // namespace dr::predict
