// --against: new rows compared with those of an earlier run.
#pragma once

#include <span>
#include <string>

#include "totals.hpp"

namespace dr::compare {

// Rows match if input, tensor, step, dtype, d and plan are equal; an input that only one side has also matches by file name,
// if that is unique. These columns of a pair are compared:
//   bytes, total_error, relative_l2_error    less is better; errors are the same within a billionth of the old one
//   X_ns with an X_ns_spread                 less is better, if the medians differ by more than the larger of both spreads
//                                            (75th - 25th percentile) and by 5 % of the old one; without spreads: same
// A row is better if a column is better and none is worse, "mixed" if it has both. The total compares sums over all pairs,
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
