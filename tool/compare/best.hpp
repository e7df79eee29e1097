// --best: the plan to take, for a whole model and for its layers of each kind.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "expression.hpp"
#include "totals.hpp"

namespace dr::compare {

struct best_question {
  expression condition;  // on a total: total_error <= 0.02
  expression by;         // least wins: bytes
};

// A list of answers, the members of each:
//   scope       "model": one input; "kind": its layers of a kind (layer_kind.hpp); "all": all inputs together
//   input kind  null where the scope has none
//   condition by    as they were asked
//   plan        null: no plan with a row for each tensor of the scope meets the condition
//   nearest     the plan that comes nearest then, of a condition `column <= number`; else null
//   unknown     instead of a plan, and there only: columns of the question that are not known (step_ns without a link)
//   total       the total (totals.hpp) of `plan`, or of `nearest`; null
// Input by input: the model, then its kinds, if there are several, by name; then all inputs, if there are several. Of several
// steps only the last counts. Where a model has rows tensor by tensor and joined, only the former count.
nlohmann::ordered_json find_best(std::span<const json_row> rows, const best_question& question);

// A sentence for each answer, a line each.
std::string best_text(const nlohmann::ordered_json& answers);

}  // namespace dr::compare
