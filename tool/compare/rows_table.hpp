// Rows in one table: of many tensors, sorted, filtered, or read from files. A column that no row has is not shown.
#pragma once

#include <span>
#include <string>

#include "totals.hpp"

namespace dr::compare {

enum class table_style { text, markdown };

struct table_request {
  table_style style = table_style::text;
  bool wide = false;    // all columns
  bool sorted = false;  // the order of rows is that of --sort: no headings for plans with one sparsifier
  size_t width = 80;    // of a line of text; wider tables wrap plans, then omit columns from the right
  // The row to be set in bold; nullptr: none.
  const json_row* winner = nullptr;
};

// In Markdown a column has the tensor; in text a heading is above its plans.
std::string rows_table(std::span<const json_row> rows, const table_request& request);

// Totals, with the number of tensors and the worst tensor.
std::string totals_table(std::span<const json_row> totals, const table_request& request);

// As a user writes it: a preset's name, or all stages; "" for memcpy.
std::string whole_plan(const json_row& row);

}  // namespace dr::compare
