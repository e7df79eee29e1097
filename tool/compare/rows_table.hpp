// Rows in one table: of many tensors, sorted, filtered, or read from files. Any row will do: a column that no row has is not shown.
#pragma once

#include <span>
#include <string>

#include "totals.hpp"

namespace dr::compare {

enum class table_style { text, markdown };

struct table_request {
  table_style style = table_style::text;
  bool sections =
      true;  // a heading for each tensor, its plans under it; else, and in Markdown, columns that say the tensor
};

std::string rows_table(std::span<const json_row> rows, const table_request& request);

// The same of totals, with the number of tensors and the worst of them.
std::string totals_table(std::span<const json_row> totals, const table_request& request);

// What the columns mean that these rows have. link: as it was given; "": not known
std::string table_legend(std::span<const json_row> rows, bool totals, const std::string& link);

}  // namespace dr::compare
