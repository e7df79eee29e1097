#include "selection.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
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

// Which of the points is beaten by none: no other is as good in all coordinates and better in one. NaN has no place in them.
std::vector<bool> pareto_front(const std::vector<std::vector<double>>& points) {
  std::vector<bool> front(points.size());
  for (size_t i = 0; i < points.size(); ++i)
    front[i] = std::ranges::none_of(points, [&](const std::vector<double>& other) {
      bool better = false;
      for (size_t k = 0; k < other.size(); ++k) {
        if (other[k] > points[i][k]) return false;
        better |= other[k] < points[i][k];
      }
      return better;
    });
  return front;
}

}  // namespace

expression parse_condition(const char* option, std::string_view text, std::span<const std::string> columns) {
  try {
    expression condition(text, columns);
    if (!condition.is_condition()) throw expression_error("no condition, such as total_error <= 0.02");
    return condition;
  } catch (const expression_error& e) {
    throw expression_error(fmt::format("{} '{}': {}", option, text, e.what()));
  }
}

std::vector<expression> parse_values(const char* option, std::string_view text, std::span<const std::string> columns) {
  try {
    std::vector<expression> values = expression_list(text, columns);
    for (const expression& e : values)
      if (e.is_condition()) throw expression_error(fmt::format("'{}' is a condition, not a value", e.text()));
    return values;
  } catch (const expression_error& e) {
    throw expression_error(fmt::format("{} '{}': {}", option, text, e.what()));
  }
}

namespace {

std::string without_spaces(std::string_view text) {
  std::string out(text);
  std::erase(out, ' ');
  return out;
}

}  // namespace

std::vector<selection::key> selection::keys_of(const char* option, std::string_view text,
                                               std::span<const std::string> columns) {
  std::vector<key> keys;
  if (text.empty()) return keys;
  for (expression& e : parse_values(option, text, columns)) {
    // "-name": a text cannot be negated, so the sign is taken off. "-a + b" is a number like any other.
    const std::string all = without_spaces(e.text());
    const bool descending = all.starts_with('-') && std::ranges::find(columns, all.substr(1)) != columns.end();
    if (descending) e = expression(all.substr(1), columns);
    keys.push_back({std::move(e), descending});
  }
  return keys;
}

selection::selection(std::string_view where, std::string_view sort, std::string_view pareto,
                     std::span<const std::string> columns)
    : sort_(keys_of("--sort", sort, columns)), front_(keys_of("--pareto", pareto, columns)) {
  if (!where.empty()) where_.push_back(parse_condition("--where", where, columns));
}

void selection::leave_front(std::vector<json_row>& rows) const {
  std::map<std::tuple<std::string, std::string, json_row>, std::vector<size_t>> subjects;
  std::vector<std::vector<double>> points(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (is_memcpy(rows[i])) continue;
    std::vector<double> point;
    for (const key& k : front_)
      if (const auto number = k.value.number(rows[i])) point.push_back(k.descending ? -*number : *number);
    if (point.size() != front_.size()) continue;
    points[i] = std::move(point);
    subjects[{text_of(rows[i], "input"), text_of(rows[i], "tensor"), rows[i].value("step", json_row())}].push_back(i);
  }
  std::set<size_t> kept;
  for (const auto& [name, members] : subjects) {
    std::vector<std::vector<double>> own;
    for (const size_t i : members) own.push_back(points[i]);
    const std::vector<bool> front = pareto_front(own);
    for (size_t k = 0; k < members.size(); ++k)
      if (front[k]) kept.insert(members[k]);
  }
  std::vector<json_row> left;
  for (const size_t i : kept) left.push_back(std::move(rows[i]));
  rows = std::move(left);
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

std::vector<std::string> columns_of(std::span<const json_row> rows) {
  std::vector<std::string> columns;
  std::set<std::string> known;
  for (const json_row& row : rows)
    for (const auto& cell : row.items())
      if (!cell.value().is_structured() && known.insert(cell.key()).second) columns.push_back(cell.key());
  return columns;
}

}  // namespace dr::compare
