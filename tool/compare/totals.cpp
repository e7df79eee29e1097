#include "totals.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "deepreduce/deepreduce.hpp"
#include "link_model.hpp"
#include "tool/show/json_number.hpp"

namespace dr::compare {
namespace {

struct stage_words {
  std::string name, text;  // "owner", "exchange=owner"; "": the plan has no such stage
};

stage_words stage_of(const json_row& row, const char* role) {
  try {
    const parsed_stages parsed(text_of(row, "plan"));
    const dr_stage* const stage = find_stage(parsed.stages(), role);
    return stage ? stage_words{stage->name, stage->text} : stage_words{};
  } catch (const error&) {  // a saved row may contain anything
    return {};
  }
}

using row_list = std::span<const json_row* const>;

json_row ratio(double a, double b) {
  return b == 0 ? json_row(a == 0 ? json_row(0.0) : json_row(nullptr)) : finite(a / b);
}

// Exact for integers; null if a row lacks the number.
json_row sum(row_list rows, const std::string& column) {
  uint64_t whole = 0;
  double all = 0;
  bool integers = true;
  for (const json_row* row : rows) {
    const auto cell = row->find(column);
    if (cell == row->end() || !cell->is_number()) return nullptr;
    integers &= cell->is_number_unsigned();
    if (integers) integers = !__builtin_add_overflow(whole, cell->get<uint64_t>(), &whole);
    all += cell->get<double>();
  }
  return integers ? json_row(whole) : finite(all);
}

// Σ f(value) weight / Σ weight.
template <class F>
json_row mean(row_list rows, const std::string& column, const char* weight_column, F&& f) {
  double above = 0, below = 0;
  for (const json_row* row : rows) {
    const auto value = number_in(*row, column), weight = number_in(*row, weight_column);
    if (!weight || (!value && *weight > 0)) return nullptr;
    if (*weight > 0) above += f(*value) * *weight;
    below += *weight;
  }
  return ratio(above, below);
}

double itself(double x) { return x; }
double square(double x) { return x * x; }

json_row root(json_row value) {
  if (value.is_number()) value = std::sqrt(value.get<double>());
  return value;
}

// Of the sum of times that vary independently.
json_row spread(row_list rows, const std::string& column) {
  const std::string time = column.substr(0, column.size() - std::string_view("_spread").size());
  double variance = 0, all = 0;
  for (const json_row* row : rows) {
    const auto relative = number_in(*row, column), ns = number_in(*row, time);
    if (!ns || (!relative && *ns > 0)) return nullptr;
    variance += square(relative.value_or(0) * *ns);
    all += *ns;
  }
  return ratio(std::sqrt(variance), all);
}

json_row in_common(row_list rows, const std::string& column) {
  const auto cell = [&](const json_row* row) {
    const auto found = row->find(column);
    return found == row->end() ? json_row(nullptr) : *found;
  };
  const json_row first = cell(rows.front());
  return std::ranges::all_of(rows, [&](const json_row* row) { return cell(row) == first; }) ? first : json_row(nullptr);
}

bool is_sum(const std::string& column) {
  static const std::set<std::string> names{"d",          "r", "support", "missed", "false_positives", "gradient_energy",
                                           "kept_energy"};
  return names.contains(column) || column.ends_with("bytes") || column.ends_with("_ns");
}

json_row least(row_list rows, const std::string& column) {
  json_row least;
  for (const json_row* row : rows)
    if (const auto number = number_in(*row, column); number && (least.is_null() || *number < least.get<double>()))
      least = row->at(column);
  return least;
}

constexpr std::array measured_times{"sparsify_ns", "encode_ns", "merge_ns"};  // of a step

// The verdict of a step that exchanges tensor after tensor, from the sums and their spread (for one row: compare.cpp).
json_row verdict(row_list rows) {
  const json_row step = sum(rows, "step_ns"), dense = sum(rows, "dense_step_ns"), half = sum(rows, "bf16_step_ns");
  if (!step.is_number() || !dense.is_number() || !half.is_number()) return in_common(rows, "verdict");
  double side = 0;
  for (const std::string time : measured_times) {
    const json_row all = sum(rows, time), relative = spread(rows, time + "_spread");
    if (!all.is_number() || !relative.is_number()) return in_common(rows, "verdict");
    side += all.get<double>() * relative.get<double>() / 2;
  }
  const double mine = step.get<double>(), best = std::min(dense.get<double>(), half.get<double>());
  return mine + side < best ? "pays" : mine - side > best ? "slower" : "even";
}

// What a step sends less than a dense ring, by the formulas of link_model.hpp: of a row that pays at no speed, so at most 0.
std::optional<double> saved_bits(const json_row& row, bool half, double ranks) {
  const auto d = number_in(row, "d"), bytes = number_in(row, "bytes");
  const std::string type = text_of(row, "dtype");
  if (!d || !bytes || ranks < 1 || (type != "f32" && type != "f16" && type != "bf16")) return std::nullopt;
  const double dense = 2 * (half || type != "f32" ? 2 : 4) * *d / ranks;
  const std::string transform = stage_of(row, "transform").name;
  const bool factors = !transform.empty() && transform != "dct";
  const double sent = factors ? 2 * *bytes / ranks : *bytes + agreement_bytes;
  return std::min(0.0, 8e9 * (ranks - 1) * (dense - sent));
}

json_row break_even(row_list rows, const std::string& column, uint64_t ranks) {
  const json_row common = in_common(rows, column), lowest = least(rows, column);
  const std::string exchange = stage_of(*rows.front(), "exchange").text;
  double above = 0, below = 0;
  bool gathers = exchange.empty() && lowest.is_number();
  for (const json_row* row : rows) {
    const auto rate = number_in(*row, column);
    if (!rate || stage_of(*row, "exchange").text != exchange) return common;
    double computing = 0;
    for (const char* const time : measured_times) computing += number_in(*row, time).value_or(0);
    const auto saved =
        *rate > 0 ? *rate * computing : saved_bits(*row, column.ends_with("_bf16"), static_cast<double>(ranks));
    gathers &= saved.has_value();
    above += saved.value_or(0);
    below += computing;
  }
  if (gathers) return ratio(std::max(above, 0.0), below);
  return exchange.empty() || lowest == 0 ? common : lowest;
}

json_row total_cell(row_list rows, const std::string& column, uint64_t ranks) {
  if (column == "verdict") return verdict(rows);
  if (column.starts_with("pays_below")) return break_even(rows, column, ranks);
  if (column == "rounds") return least(rows, column);
  if (is_sum(column)) return sum(rows, column);
  if (column.ends_with("_ns_spread")) return spread(rows, column);
  if (column == "total_error") return root(mean(rows, column, "gradient_energy", square));
  if (column == "contraction" || column == "energy_recall") {
    // At later steps gradient_energy is that of a sum, to which these are not relative.
    if (number_in(*rows.front(), "step") != 1.0) return nullptr;
    return mean(rows, column, "gradient_energy", itself);
  }
  if (column == "relative_l2_error") return root(mean(rows, column, "kept_energy", square));
  if (column == "index_recall" || column.ends_with("_per_nonzero")) return mean(rows, column, "r", itself);
  if (column == "relative_volume") return mean(rows, column, "d", itself);
  if (column == "max_relative_error" || column == "cosine_similarity") return nullptr;  // undefined for sums of tensors
  return in_common(rows, column);
}

}  // namespace

std::string text_of(const json_row& row, const char* column) {
  const auto cell = row.find(column);
  return cell != row.end() && cell->is_string() ? cell->get<std::string>() : std::string();
}

json_row combine(row_list rows, uint64_t ranks) {
  json_row total;
  for (const auto& cell : rows.front()->items())
    if (!cell.value().is_structured()) total[cell.key()] = total_cell(rows, cell.key(), ranks);
  total["tensors"] = rows.size();
  const json_row* worst = nullptr;
  for (const json_row* row : rows)
    if (const auto error = number_in(*row, "total_error"))
      if (!worst || *error > *number_in(*worst, "total_error")) worst = row;
  total["worst_tensor"] = worst ? worst->value("tensor", json_row()) : json_row();
  total["worst_error"] = worst ? worst->at("total_error") : json_row();
  return total;
}

cut cut_of(const json_row& row) {
  const std::string tensor = text_of(row, "tensor");
  if (tensor == "*" || tensor.starts_with("* (")) return cut::joined;
  return tensor.starts_with('[') && tensor.ends_with(" tensors]") ? cut::batch : cut::tensor;
}

std::optional<double> number_in(const json_row& row, const std::string& column) {
  const auto cell = row.find(column);
  if (cell == row.end() || !cell->is_number()) return std::nullopt;
  return cell->get<double>();
}

std::string printed(const json_row& cell) { return cell.dump(-1, ' ', false, json_row::error_handler_t::replace); }

void rows_by_plan::add(const json_row& row) {
  const std::string subject = text_of(row, "input") + '\0' + text_of(row, "tensor"), plan = text_of(row, "plan");
  subjects.insert(subject);
  if (!rows_.contains(plan)) plans.push_back(plan);
  rows_[plan][subject] = &row;
}

std::vector<const json_row*> rows_by_plan::of(const std::string& plan) const {
  std::vector<const json_row*> rows;
  for (const auto& [subject, row] : rows_.at(plan)) rows.push_back(row);
  return rows;
}

total_list totals_of(std::span<const json_row> all, uint64_t ranks) {
  using group_key = std::tuple<std::string, json_row, cut, std::string>;  // input, step, cut, run
  std::vector<group_key> order;
  std::map<group_key, rows_by_plan> groups;
  for (const json_row& row : all) {
    const group_key key(text_of(row, "input"), row.value("step", json_row()), cut_of(row), run_of(row));
    if (!groups.contains(key)) order.push_back(key);
    groups[key].add(row);
  }
  total_list list;
  for (const group_key& key : order) {
    const rows_by_plan& group = groups[key];
    const size_t tensors = group.subjects.size();
    if (tensors < 2) continue;
    for (const std::string& plan : group.plans) {
      const std::vector<const json_row*> rows = group.of(plan);
      if (rows.size() == tensors)
        list.totals.push_back(combine(rows, ranks));
      else
        list.incomplete.push_back(fmt::format("{}: {}: {} row{} of {} tensors", std::get<0>(key), plan, rows.size(),
                                              rows.size() == 1 ? "" : "s", tensors));
    }
  }
  return list;
}

std::vector<json_row> book_totals(std::span<const json_row> all, const std::string& plan,
                                  const std::function<std::string(const std::string&)>& plan_of, uint64_t ranks) {
  std::map<std::pair<std::string, json_row>, std::map<std::string, const json_row*>> inputs;
  std::map<std::string, std::string> plans;  // of tensors
  for (const json_row& row : all) {
    const std::string tensor = text_of(row, "tensor");
    const auto [known, is_new] = plans.try_emplace(tensor);
    if (is_new) known->second = plan_of(tensor);
    if (run_of(row).empty() && text_of(row, "plan") == known->second)
      inputs[{text_of(row, "input"), row.value("step", json_row())}][tensor] = &row;
  }
  std::vector<json_row> totals;
  for (const auto& [key, tensors] : inputs) {
    std::vector<const json_row*> rows;
    for (const auto& [tensor, row] : tensors) rows.push_back(row);
    totals.push_back(combine(rows, ranks));
    totals.back()["plan"] = plan;
  }
  return totals;
}

}  // namespace dr::compare
