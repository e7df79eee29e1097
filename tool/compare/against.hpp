// --against: rows of now beside those of an earlier run.
#pragma once

#include <span>
#include <string>

#include "totals.hpp"

namespace dr::compare {

// Rows belong together if input, tensor, step, dtype, d and plan are the same; an input that one side only has, also by the
// name of its file, if no two have that name. Of each such pair these columns are judged:
//   bytes, total_error, relative_l2_error    less is better; errors are the same within a billionth of the old one
//   X_ns with an X_ns_spread                 less is better, where the medians differ by more than the larger of both spreads
//                                            (75th - 25th percentile) and by 5 % of the old one; without both spreads: same
// A row is better if some column is and none is worse, "mixed" if it has both. The total judges sums over all pairs in the same way,
// with the spread of a sum of independent times.
//   {"old": {file, commit, cpu}, "rows": [{input, tensor, step, plan, verdict, columns: {COLUMN: {old, new, change, verdict}}}],
//    "total": {rows, better, worse, same, mixed, verdict, columns}, "only_old": [{input, tensor, step, plan}], "only_new": […],
//    "notes": […]}         change: (new - old) / old, null for old = 0
nlohmann::ordered_json compare_with(std::span<const json_row> rows, const nlohmann::ordered_json& document,
                                    std::span<const json_row> old_rows, const nlohmann::ordered_json& old_document,
                                    const std::string& file);

std::string against_text(const nlohmann::ordered_json& result, bool markdown = false);  // a table and sentences

bool any_worse(const nlohmann::ordered_json& result);  // a row, "mixed" ones too, or the total

}  // namespace dr::compare
