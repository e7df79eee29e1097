// Expressions over the columns of a row, for --where, --sort, --pareto and --best.
//
//   or      = and ("or" and)*              and = not ("and" not)*              not = "not" not | comparison
//   comparison = sum [ ("<" | "<=" | ">" | ">=" | "==" | "=" | "!=" | "~" | "!~") sum ]
//   sum     = product (("+" | "-") product)*        product = unary (("*" | "/") unary)*       unary = "-" unary | primary
//   primary = NUMBER | COLUMN | 'text' | "text" | null | "(" or ")"
//
// ~ matches a text against a glob (*, ?, [a-z]). An empty cell (null) in a sum makes it null; a comparison with null is false,
// except == null and != null. Numbers as in C: 0.02, 1e6.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dr::compare {

struct expression_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct expression_node;

enum class value_type { unknown, number, text, condition };

class expression {
 public:
  // `columns`: a row with all columns that may be named, with a cell of the column's type; null: any type. Throws
  // expression_error with the position of the first error, or with an unknown name.
  expression(std::string_view text, const nlohmann::ordered_json& columns);

  const std::string& text() const { return text_; }

  // Its type for such rows. Throws expression_error if an operand has the wrong type.
  value_type type(const nlohmann::ordered_json& columns) const;

  // A row is an object of numbers, texts and nulls. Throws expression_error if a cell has the wrong type.
  bool holds(const nlohmann::ordered_json& row) const;                    // of a condition
  nlohmann::ordered_json value(const nlohmann::ordered_json& row) const;  // a number, a text or null
  std::optional<double> number(const nlohmann::ordered_json& row) const;  // none: null

  std::vector<std::string> columns() const;  // in the expression, without duplicates

  // For a condition `sum <= number` or `sum < number`: the sum. Else none.
  std::optional<expression> bounded_sum() const;

 private:
  expression(std::string text, std::shared_ptr<const expression_node> root);
  std::string text_;
  std::shared_ptr<const expression_node> root_;
};

// The expressions of a list: "bytes,total_error,encode_ns+decode_ns".
std::vector<expression> expression_list(std::string_view text, const nlohmann::ordered_json& columns);

}  // namespace dr::compare
