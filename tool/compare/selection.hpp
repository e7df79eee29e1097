// Which rows are shown, and in which order. Rows are objects with a cell for each column; any column may be asked for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expression.hpp"
#include "totals.hpp"

namespace dr::compare {

// Smaller is better in each; memcpy takes no part.
inline constexpr const char* usual_front = "bytes,total_error,encode_ns+decode_ns";

// What --where, --sort and --pareto say. Throws expression_error that names the option.
class selection {
 public:
  selection() = default;
  // "" for what is not asked for; columns: as expression takes them.
  selection(std::string_view where, std::string_view sort, std::string_view pareto, const json_row& columns);

  bool asks() const { return !where_.empty() || !sort_.empty() || !front_.empty(); }

  // In this order: where; of each tensor and step the Pareto front of what is left; sort, by the first key, then the second, …;
  // rows that are equal in all keys stay as they are, nulls are last.
  std::vector<json_row> apply(std::vector<json_row> rows) const;
  std::vector<json_row> filter(std::vector<json_row> rows) const;  // where alone
  // Of rows of which none passes --where: how near they come, as a sentence. "": --where was not asked for.
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

// A list of numbers, such as "bytes,encode_ns+decode_ns", likewise.
std::vector<expression> parse_numbers(const char* option, std::string_view text, const json_row& columns);

// The columns of all rows, in their order, each with the first cell that is not null; without the lists and objects (samples).
json_row columns_of(std::span<const json_row> rows);

}  // namespace dr::compare
