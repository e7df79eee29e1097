// --best: the best plan for a model, and for its layers of every kind.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "expression.hpp"
#include "totals.hpp"

namespace dr::compare {

struct best_question {
  expression condition;  // on a total: total_error <= 0.02
  expression by;         // minimised: bytes
  uint64_t ranks = 0;    // of the rows' exchanges; 0: unknown
};

// A list of answers with these members:
//   scope       "model": one input; "kind": its layers of a kind (layer_kind.hpp); "all": all inputs together
//   input kind  null if the scope has none
//   condition by    texts of the question
//   plan        null: no plan with a row for every tensor of the scope meets the condition
//   nearest     without a plan, the nearest one for a condition `column <= number`; else null
//   unknown     only without a plan: unknown columns of the question (step_ns without a link)
//   total       the total (totals.hpp) of `plan`, or of `nearest`; null
// Per input: the model, then its kinds, if several, by name; then all inputs, if several. Only the last step counts. If a model
// has rows per tensor and joined, only the former count.
nlohmann::ordered_json find_best(std::span<const json_row> rows, const best_question& question);

// One line per answer.
std::string best_text(const nlohmann::ordered_json& answers);

}  // namespace dr::compare
