// Rows in one table: of many tensors, sorted, filtered, or read from files. A column that no row has is not shown.
#pragma once

#include <span>
#include <string>

#include "totals.hpp"

namespace dr::compare {

enum class table_style { text, markdown };

struct table_request {
  table_style style = table_style::text;
  bool sections = true;  // a heading per tensor, its plans below; else, and in Markdown, a column with the tensor
};

std::string rows_table(std::span<const json_row> rows, const table_request& request);

// Totals, with the number of tensors and the worst tensor.
std::string totals_table(std::span<const json_row> totals, const table_request& request);

// Explains the columns of these rows. link: of the command line; "": unknown
std::string table_legend(std::span<const json_row> rows, bool totals, const std::string& link);

}  // namespace dr::compare
