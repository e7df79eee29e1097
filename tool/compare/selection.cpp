#include "selection.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace dr::compare {
namespace {

// Below 0: a is before b.
int order_of(const json_row& a, const json_row& b, bool descending) {
  if (a.is_null() || b.is_null()) return static_cast<int>(a.is_null()) - static_cast<int>(b.is_null());
  const int order = a < b ? -1 : b < a ? 1 : 0;
  return descending ? -order : order;
}

// Less is better. Values that differ by no more than the larger noise are equal.
struct coordinate {
  double value, noise;
};
using point = std::vector<coordinate>;

// Whether a point is on the front: no other is as good in all coordinates and better in one. Coordinates are not NaN.
std::vector<bool> pareto_front(const std::vector<point>& points) {
  const auto below = [](const coordinate& a, const coordinate& b) {
    return a.value + std::max(a.noise, b.noise) < b.value;
  };
  std::vector<bool> front(points.size());
  for (size_t i = 0; i < points.size(); ++i)
    front[i] = std::ranges::none_of(points, [&](const point& other) {
      bool better = false;
      for (size_t k = 0; k < other.size(); ++k) {
        if (below(points[i][k], other[k])) return false;
        better |= below(other[k], points[i][k]);
      }
      return better;
    });
  return front;
}

// The largest spread of the expression's times.
double relative_noise(const expression& e, const json_row& row) {
  double largest = 0;
  for (const std::string& column : e.columns())
    if (column.ends_with("_ns")) largest = std::max(largest, number_in(row, column + "_spread").value_or(0));
  return largest;
}

}  // namespace

expression parse_condition(const char* option, std::string_view text, const json_row& columns) {
  try {
    expression condition(text, columns);
    if (condition.type(columns) != value_type::condition)
      throw expression_error("not a condition, such as total_error <= 0.02");
    return condition;
  } catch (const expression_error& e) {
    throw expression_error(fmt::format("{} '{}': {}", option, text, e.what()));
  }
}

namespace {

void check_value(const expression& e, const json_row& columns, bool texts) {
  const value_type type = e.type(columns);
  const char* const wrong = type == value_type::condition        ? "is a condition, not a value"
                            : type == value_type::text && !texts ? "is a text, not a number"
                                                                 : nullptr;
  if (wrong) throw expression_error(fmt::format("'{}' {}", e.text(), wrong));
}

std::string without_spaces(std::string_view text) {
  std::string out(text);
  std::erase(out, ' ');
  return out;
}

}  // namespace

std::vector<expression> parse_numbers(const char* option, std::string_view text, const json_row& columns) {
  try {
    std::vector<expression> values = expression_list(text, columns);
    for (const expression& e : values) check_value(e, columns, false);
    return values;
  } catch (const expression_error& e) {
    throw expression_error(fmt::format("{} '{}': {}", option, text, e.what()));
  }
}

std::vector<selection::key> selection::sort_keys(std::string_view text, const json_row& columns) {
  try {
    std::vector<key> keys;
    for (expression& e : expression_list(text, columns)) {
      // "-name": a text cannot be negated, so the sign is removed. "-a + b" is an ordinary number.
      const std::string all = without_spaces(e.text());
      const bool descending = all.starts_with('-') && columns.contains(all.substr(1));
      if (descending) e = expression(all.substr(1), columns);
      check_value(e, columns, true);
      keys.push_back({std::move(e), descending});
    }
    return keys;
  } catch (const expression_error& e) {
    throw expression_error(fmt::format("--sort '{}': {}", text, e.what()));
  }
}

selection::selection(std::string_view where, std::string_view sort, std::string_view pareto, const json_row& columns) {
  if (!where.empty()) where_.push_back(parse_condition("--where", where, columns));
  if (!sort.empty()) sort_ = sort_keys(sort, columns);
  if (!pareto.empty()) front_ = parse_numbers("--pareto", pareto, columns);
}

void selection::leave_front(std::vector<json_row>& rows) const {
  std::map<std::tuple<std::string, std::string, json_row>, std::vector<size_t>> subjects;
  std::vector<point> points(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (is_memcpy(rows[i])) continue;
    point at;
    for (const expression& e : front_)
      if (const auto number = e.number(rows[i]))
        at.push_back({*number, std::abs(*number) * relative_noise(e, rows[i])});
    if (at.size() != front_.size()) continue;
    points[i] = std::move(at);
    subjects[{text_of(rows[i], "input"), text_of(rows[i], "tensor"), rows[i].value("step", json_row())}].push_back(i);
  }
  std::set<size_t> front_rows;
  for (const auto& [name, members] : subjects) {
    std::vector<point> own;
    for (const size_t i : members) own.push_back(points[i]);
    const std::vector<bool> front = pareto_front(own);
    for (size_t k = 0; k < members.size(); ++k)
      if (front[k]) front_rows.insert(members[k]);
  }
  std::vector<json_row> left;
  for (const size_t i : front_rows) left.push_back(std::move(rows[i]));
  rows = std::move(left);
  if (!sort_.empty()) return;
  // By the first column; tensors stay in order.
  std::map<std::string, size_t> place;
  const auto subject = [](const json_row& row) {
    return text_of(row, "input") + '\0' + text_of(row, "tensor") + '\0' + printed(row.value("step", json_row()));
  };
  for (const json_row& row : rows) place.emplace(subject(row), place.size());
  std::ranges::stable_sort(rows, [&](const json_row& a, const json_row& b) {
    if (subject(a) != subject(b)) return place.at(subject(a)) < place.at(subject(b));
    return order_of(front_[0].value(a), front_[0].value(b), false) < 0;
  });
}

void selection::sort_rows(std::vector<json_row>& rows) const {
  std::vector<std::pair<std::vector<json_row>, size_t>> order(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    order[i].second = i;
    for (const key& k : sort_) order[i].first.push_back(k.value.value(rows[i]));
  }
  std::ranges::stable_sort(order, [&](const auto& a, const auto& b) {
    for (size_t k = 0; k < sort_.size(); ++k)
      if (const int o = order_of(a.first[k], b.first[k], sort_[k].descending)) return o < 0;
    return false;
  });
  std::vector<json_row> sorted;
  for (const auto& [keys, i] : order) sorted.push_back(std::move(rows[i]));
  rows = std::move(sorted);
}

std::vector<json_row> selection::filter(std::vector<json_row> rows) const {
  for (const expression& condition : where_) try {
      std::erase_if(rows, [&](const json_row& row) { return !condition.holds(row); });
    } catch (const expression_error& e) {
      throw expression_error(fmt::format("--where '{}': {}", condition.text(), e.what()));
    }
  return rows;
}

std::string selection::why_none(std::span<const json_row> rows) const {
  if (where_.empty()) return {};
  const expression& condition = where_[0];
  std::string text = fmt::format("--where '{}': none of {} rows", condition.text(),
                                 std::ranges::count_if(rows, [](const json_row& row) { return !is_memcpy(row); }));
  for (const std::string& column : condition.columns())
    if (std::ranges::all_of(rows, [&](const json_row& row) { return row.value(column, json_row()).is_null(); }))
      return text + fmt::format("; no row has '{}'{}", column,
                                column == "verdict" || column.ends_with("step_ns") ? ", which requires --link" : "");
  const auto sum = condition.bounded_sum();
  if (!sum) return text;
  std::optional<double> smallest;
  for (const json_row& row : rows)
    if (const auto number = is_memcpy(row) ? std::nullopt : sum->number(row))
      smallest = std::min(smallest.value_or(*number), *number);
  return smallest ? text + fmt::format("; the least {} is {:.3g}", sum->text(), *smallest) : text;
}

std::vector<json_row> selection::apply(std::vector<json_row> rows) const {
  rows = filter(std::move(rows));
  try {
    if (!front_.empty()) leave_front(rows);
  } catch (const expression_error& e) {
    throw expression_error(fmt::format("--pareto: {}", e.what()));
  }
  if (!sort_.empty()) sort_rows(rows);
  return rows;
}

json_row columns_of(std::span<const json_row> rows) {
  json_row columns = json_row::object();
  std::set<std::string> known;
  for (const json_row& row : rows)
    for (const auto& cell : row.items()) {
      if (cell.value().is_structured() || known.contains(cell.key())) continue;
      columns[cell.key()] = cell.value();
      if (!cell.value().is_null()) known.insert(cell.key());
    }
  return columns;
}

}  // namespace dr::compare
