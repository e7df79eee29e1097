#include "expression.hpp"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "tool/read/near_name.hpp"
#include "tool/show/json_number.hpp"

namespace dr::compare {

using nlohmann::ordered_json;

// An operator with its operands, or a leaf: "column" or "literal".
struct expression_node {
  std::string kind;
  ordered_json literal;  // of a column its name
  std::vector<std::shared_ptr<const expression_node>> operands;
};

namespace {

using node = std::shared_ptr<const expression_node>;

constexpr int deepest = 64;
constexpr size_t longest = 4096;  // bounds recursion over a chain of operators

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Similar names, or names that contain the unknown one; else all.
std::string suggestions(const std::string& name, const ordered_json& columns) {
  std::string near, all;
  for (const auto& column : columns.items()) {
    const std::string& c = column.key();
    const bool alike =
        (name.size() > 2 && c.find(name) != c.npos) || distance(name, c) <= std::min<size_t>(2, name.size() / 3);
    if (alike) near += (near.empty() ? "" : ", ") + c;
    all += (all.empty() ? "" : ", ") + c;
  }
  return near.empty() ? "; known: " + all : "; similar: " + near;
}

class parser {
 public:
  parser(std::string_view text, const ordered_json& columns) : text_(text), columns_(columns) {
    if (text.size() > longest) refuse(fmt::format("an expression has at most {} characters", longest));
    advance();
  }

  // Up to the end, or with `list` up to a comma.
  node whole(bool list) {
    node all = alternatives();
    if (!token_.empty() && !(list && token_ == ",")) refuse(fmt::format("'{}' is not expected here", token_));
    return all;
  }
  bool at_comma() const { return token_ == ","; }
  void skip() { advance(); }
  size_t begin() const { return begin_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw expression_error(fmt::format("position {}: {}", begin_, what));
  }

  void advance() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    begin_ = at_;
    token_ = {};
    if (at_ == text_.size()) return;
    const char c = text_[at_];
    size_t end = at_ + 1;
    if (c == '\'' || c == '"') {
      end = text_.find(c, end);
      if (end == text_.npos) refuse("the text has no closing quote");
      ++end;
    } else if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') {
      double ignored;
      const auto read = std::from_chars(text_.data() + at_, text_.data() + text_.size(), ignored);
      if (read.ec != std::errc() || !std::isfinite(ignored)) refuse("not a number");
      end = static_cast<size_t>(read.ptr - text_.data());
      if (end < text_.size() && is_word(text_[end])) refuse("a number ends in letters; 1e6 is a million");
    } else if (is_word(c)) {
      while (end < text_.size() && is_word(text_[end])) ++end;
    } else {
      for (const std::string_view two : {"<=", ">=", "==", "!=", "!~", "&&", "||"})
        if (text_.substr(at_, 2) == two) end = at_ + 2;
    }
    token_ = text_.substr(at_, end - at_);
    at_ = end;
  }

  bool take(std::initializer_list<std::string_view> tokens) {
    if (token_.empty() || std::find(tokens.begin(), tokens.end(), token_) == tokens.end()) return false;
    advance();
    return true;
  }

  static node make(std::string kind, std::vector<node> operands) {
    return std::make_shared<expression_node>(expression_node{std::move(kind), nullptr, std::move(operands)});
  }

  node alternatives() {
    if (++depth_ > deepest) refuse("more than 64 parentheses in one another");
    node left = conjunction();
    while (take({"or", "||"})) left = make("or", {left, conjunction()});
    --depth_;
    return left;
  }

  node conjunction() {
    node left = negation();
    while (take({"and", "&&"})) left = make("and", {left, negation()});
    return left;
  }

  node negation() {
    size_t times = 0;
    while (take({"not", "!"})) ++times;
    node inner = comparison();
    return times % 2 ? make("not", {inner}) : inner;
  }

  node comparison() {
    node left = sum();
    const std::string sign(token_ == "=" ? "==" : token_);
    static constexpr std::string_view signs[] = {"<", "<=", ">", ">=", "==", "=", "!=", "~", "!~"};
    const auto is_sign = [&] { return std::ranges::find(signs, token_) != std::end(signs); };
    if (!is_sign()) return left;
    advance();
    node right = sum();
    if (is_sign()) refuse("two comparisons in a row; join them by 'and'");
    return make(sign, {left, right});
  }

  node sum() {
    node left = product();
    while (token_ == "+" || token_ == "-") {
      const std::string sign(token_);
      advance();
      left = make(sign, {left, product()});
    }
    return left;
  }

  node product() {
    node left = unary();
    while (token_ == "*" || token_ == "/") {
      const std::string sign(token_);
      advance();
      left = make(sign, {left, unary()});
    }
    return left;
  }

  node unary() {
    size_t times = 0;
    while (take({"-"})) ++times;
    node inner = primary();
    return times % 2 ? make("negative", {inner}) : inner;
  }

  node leaf(const char* kind, ordered_json value) {
    advance();
    return std::make_shared<expression_node>(expression_node{kind, std::move(value), {}});
  }

  node primary() {
    if (token_.empty()) refuse("the expression ends too early");
    const char c = token_.front();
    if (c == '(') {
      advance();
      node inner = alternatives();
      if (!take({")"})) refuse("')' is missing");
      return inner;
    }
    if (c == '\'' || c == '"') return leaf("literal", std::string(token_.substr(1, token_.size() - 2)));
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') {
      double value = 0;
      std::from_chars(token_.data(), token_.data() + token_.size(), value);
      return leaf("literal", value);
    }
    if (!is_word(c)) refuse(fmt::format("'{}' is not expected here", token_));
    std::string name(token_);
    if (name == "null") return leaf("literal", nullptr);
    if (name == "and" || name == "or" || name == "not") refuse(fmt::format("'{}' is not expected here", name));
    // Headings of tables, as aliases of columns.
    for (const auto& [heading, column] : {std::pair("error", "total_error"), std::pair("coding", "relative_l2_error")})
      if (name == heading) name = column;
    if (!columns_.contains(name)) refuse(fmt::format("no column '{}'{}", name, suggestions(name, columns_)));
    return leaf("column", std::move(name));
  }

  std::string_view text_;
  const ordered_json& columns_;
  std::string_view token_;
  size_t at_ = 0, begin_ = 0;
  int depth_ = 0;
};

bool is_one_of(std::string_view kind, std::initializer_list<std::string_view> kinds) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

value_type type_of(const ordered_json& cell) {
  return cell.is_number() ? value_type::number : cell.is_string() ? value_type::text : value_type::unknown;
}

const char* name_of(value_type type) {
  return type == value_type::number ? "a number" : type == value_type::text ? "a text" : "a condition";
}

const char* sign_of(const expression_node& n) { return n.kind == "negative" ? "-" : n.kind.c_str(); }

// "bytes is a number"
std::string described(const expression_node& n, value_type type) {
  const std::string what = n.kind == "column"    ? n.literal.get<std::string>()
                           : n.kind == "literal" ? n.literal.dump()
                                                 : fmt::format("the result of '{}'", sign_of(n));
  return fmt::format("{} is {}", what, name_of(type));
}

// Throws if an operand has the wrong type.
value_type type_of(const expression_node& n, const ordered_json& columns) {
  using enum value_type;
  if (n.kind == "literal") return type_of(n.literal);
  if (n.kind == "column") return type_of(columns.value(n.literal.get<std::string>(), ordered_json()));
  const bool logic = is_one_of(n.kind, {"and", "or", "not"}), globs = is_one_of(n.kind, {"~", "!~"});
  const bool sums = is_one_of(n.kind, {"+", "-", "*", "/", "negative"});
  const value_type required = logic ? condition : globs ? text : sums ? number : unknown;
  value_type first = unknown;
  for (const node& operand : n.operands) {
    const value_type own = type_of(*operand, columns);
    if (own == unknown) continue;
    const char* const sign = sign_of(n);
    if (required != unknown && own != required)
      throw expression_error(
          fmt::format("'{}' requires {}s; {}", sign, name_of(required) + 2, described(*operand, own)));
    if (required == unknown && own == condition)
      throw expression_error(fmt::format("'{}' compares numbers or texts; {}", sign, described(*operand, own)));
    if (required == unknown && first != unknown && own != first)
      throw expression_error(fmt::format("'{}' compares two numbers or two texts; {}, {}", sign,
                                         described(*n.operands[0], first), described(*operand, own)));
    first = own;
  }
  return sums ? number : condition;
}

double as_number(const ordered_json& value, const expression_node& n) {
  if (value.is_number()) return value.get<double>();
  throw expression_error(fmt::format("'{}' requires numbers, not {}", n.kind, value.dump()));
}
const std::string& as_text(const ordered_json& value, const expression_node& n) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  throw expression_error(fmt::format("'{}' requires texts, not {}", n.kind, value.dump()));
}

bool is_null_literal(const expression_node& n) { return n.kind == "literal" && n.literal.is_null(); }

bool compare_values(const expression_node& n, const ordered_json& a, const ordered_json& b) {
  const std::string& op = n.kind;
  if (a.is_null() || b.is_null()) {
    const bool asked = is_null_literal(*n.operands[0]) || is_null_literal(*n.operands[1]);  // "== null"
    const bool equal = a.is_null() && b.is_null();
    return asked && ((op == "==" && equal) || (op == "!=" && !equal));
  }
  if (op == "~" || op == "!~") return (fnmatch(as_text(b, n).c_str(), as_text(a, n).c_str(), 0) == 0) == (op == "~");
  if (a.is_string() || b.is_string()) {
    const int order = as_text(a, n).compare(as_text(b, n));
    return op == "=="   ? order == 0
           : op == "!=" ? order != 0
           : op == "<"  ? order < 0
           : op == "<=" ? order <= 0
           : op == ">"  ? order > 0
                        : order >= 0;
  }
  const double x = as_number(a, n), y = as_number(b, n);
  return op == "=="   ? x == y
         : op == "!=" ? x != y
         : op == "<"  ? x < y
         : op == "<=" ? x <= y
         : op == ">"  ? x > y
                      : x >= y;
}

ordered_json arithmetic(const expression_node& n, const ordered_json& a, const ordered_json& b) {
  if (a.is_null() || b.is_null()) return nullptr;
  const double x = as_number(a, n), y = as_number(b, n);
  return finite(n.kind == "+" ? x + y : n.kind == "-" ? x - y : n.kind == "*" ? x * y : x / y);
}

bool as_condition(const ordered_json& value, const char* where) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_null()) return false;
  throw expression_error(fmt::format("'{}' requires a condition, such as bytes < 1e6, not {}", where, value.dump()));
}

ordered_json evaluate(const expression_node& n, const ordered_json& row) {
  if (n.kind == "literal") return n.literal;
  if (n.kind == "column") {
    const auto cell = row.find(n.literal.get_ref<const std::string&>());
    return cell == row.end() ? ordered_json(nullptr) : *cell;
  }
  const ordered_json a = evaluate(*n.operands[0], row);
  if (n.kind == "not") return !as_condition(a, "not");
  if (n.kind == "negative") return a.is_null() ? a : finite(-as_number(a, n));
  if (n.kind == "and") return as_condition(a, "and") && as_condition(evaluate(*n.operands[1], row), "and");
  if (n.kind == "or") return as_condition(a, "or") || as_condition(evaluate(*n.operands[1], row), "or");
  const ordered_json b = evaluate(*n.operands[1], row);
  if (n.kind == "+" || n.kind == "-" || n.kind == "*" || n.kind == "/") return arithmetic(n, a, b);
  return compare_values(n, a, b);
}

}  // namespace

expression::expression(std::string_view text, const ordered_json& columns)
    : text_(text), root_(parser(text_, columns).whole(false)) {}

expression::expression(std::string text, node root) : text_(std::move(text)), root_(std::move(root)) {}

value_type expression::type(const ordered_json& columns) const { return type_of(*root_, columns); }

bool expression::holds(const ordered_json& row) const { return as_condition(evaluate(*root_, row), "the condition"); }

ordered_json expression::value(const ordered_json& row) const {
  ordered_json value = evaluate(*root_, row);
  if (value.is_boolean()) throw expression_error(fmt::format("'{}' is a condition, not a value", text_));
  return value;
}

std::optional<double> expression::number(const ordered_json& row) const {
  const ordered_json result = value(row);
  if (result.is_null()) return std::nullopt;
  if (!result.is_number()) throw expression_error(fmt::format("'{}' is a text, not a number", text_));
  return result.get<double>();
}

std::vector<std::string> expression::columns() const {
  std::vector<std::string> names;
  const auto visit = [&](const auto& self, const expression_node& n) -> void {
    if (n.kind == "column" && std::ranges::find(names, n.literal.get<std::string>()) == names.end())
      names.push_back(n.literal);
    for (const node& operand : n.operands) self(self, *operand);
  };
  visit(visit, *root_);
  return names;
}

std::optional<expression> expression::bounded_sum() const {
  if ((root_->kind != "<" && root_->kind != "<=") || !root_->operands[1]->literal.is_number()) return std::nullopt;
  std::string left = text_.substr(0, text_.find('<'));
  left.erase(left.find_last_not_of(' ') + 1);
  // Parentheses around the condition open here and close behind the number.
  for (auto open = std::ranges::count(left, '(') - std::ranges::count(left, ')'); open > 0; --open)
    left.erase(0, left.find('(') + 1);
  left.erase(0, left.find_first_not_of(' '));
  return expression(std::move(left), root_->operands[0]);
}

std::vector<expression> expression_list(std::string_view text, const ordered_json& columns) {
  // A quoted text may contain a comma, so the parser finds the end of an expression.
  std::vector<expression> list;
  while (true) {
    parser p(text, columns);
    (void)p.whole(true);
    list.emplace_back(text.substr(0, p.at_comma() ? p.begin() : text.npos), columns);
    if (!p.at_comma()) return list;
    text.remove_prefix(p.begin() + 1);
  }
}

}  // namespace dr::compare
