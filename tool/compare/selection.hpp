// Filters and sorts rows. Rows are objects with one cell per column.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expression.hpp"
#include "totals.hpp"

namespace dr::compare {

// Smaller is better in all columns; memcpy does not take part.
inline constexpr const char* usual_front = "bytes,total_error,encode_ns+decode_ns";

// --where, --sort and --pareto. Throws an expression_error that names the option.
class selection {
 public:
  selection() = default;
  // "": option not given. columns: as for expression.
  selection(std::string_view where, std::string_view sort, std::string_view pareto, const json_row& columns);

  bool asks() const { return !where_.empty() || !sort_.empty() || !front_.empty(); }

  // In this order: where; the Pareto front per tensor and step; a stable sort by the first key, then the second, …, with
  // nulls last.
  std::vector<json_row> apply(std::vector<json_row> rows) const;
  std::vector<json_row> filter(std::vector<json_row> rows) const;  // where alone
  // For rows that all fail --where: the nearest one, as a sentence. "": --where was not given.
  std::string why_none(std::span<const json_row> rows) const;

 private:
  struct key {
    expression value;
    bool descending;
  };
  static std::vector<key> sort_keys(std::string_view text, const json_row& columns);
  void leave_front(std::vector<json_row>& rows) const;
  void sort_rows(std::vector<json_row>& rows) const;

  std::vector<expression> where_;  // none or one
  std::vector<key> sort_;
  std::vector<expression> front_;
};

// A condition, or an expression_error that begins with `option`.
expression parse_condition(const char* option, std::string_view text, const json_row& columns);

// The same for a list of numbers, such as "bytes,encode_ns+decode_ns".
std::vector<expression> parse_numbers(const char* option, std::string_view text, const json_row& columns);

// The columns of all rows, in order, with their first non-null cell; without lists and objects (samples).
json_row columns_of(std::span<const json_row> rows);

}  // namespace dr::compare
