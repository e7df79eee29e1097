// Expressions over the columns of a row, for --where, --sort, --pareto and --best.
//
//   or      = and ("or" and)*              and = not ("and" not)*              not = "not" not | comparison
//   comparison = sum [ ("<" | "<=" | ">" | ">=" | "==" | "=" | "!=" | "~" | "!~") sum ]
//   sum     = product (("+" | "-") product)*        product = unary (("*" | "/") unary)*       unary = "-" unary | primary
//   primary = NUMBER | COLUMN | 'text' | "text" | null | "(" or ")"
//
// ~ matches a text against a glob (*, ?, [a-z]). An empty cell (null) in a sum makes it null; a comparison with null is false,
// but for == null and != null. Numbers as in C: 0.02, 1e6.
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
  // `columns`: a row that has each column that may be named, with a cell of its type; null: of any type. Throws expression_error
  // with the position of the first thing that does not fit, or with a name that is not among them.
  expression(std::string_view text, const nlohmann::ordered_json& columns);

  const std::string& text() const { return text_; }

  // What it gives of such rows. Throws expression_error where an operator has operands of a wrong type.
  value_type type(const nlohmann::ordered_json& columns) const;

  // A row is an object of numbers, texts and nulls. Throws expression_error where a text stands for a number or the
  // other way round.
  bool holds(const nlohmann::ordered_json& row) const;                    // of a condition
  nlohmann::ordered_json value(const nlohmann::ordered_json& row) const;  // a number, a text or null
  std::optional<double> number(const nlohmann::ordered_json& row) const;  // none: null

  std::vector<std::string> columns() const;  // that it names, each once

  // Of a condition `sum <= number` or `sum < number`: its sum, of which less is nearer. Else none.
  std::optional<expression> bounded_sum() const;

 private:
  expression(std::string text, std::shared_ptr<const expression_node> root);
  std::string text_;
  std::shared_ptr<const expression_node> root_;
};

// The expressions of a list: "bytes,total_error,encode_ns+decode_ns".
std::vector<expression> expression_list(std::string_view text, const nlohmann::ordered_json& columns);

}  // namespace dr::compare
