#include "best.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "layer_kind.hpp"
#include "tool/show/joined.hpp"
#include "tool/show/text_table.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

// The rows of every run's last step: its inputs are the steps of one training, or all have step 1.
std::vector<const json_row*> last_steps(std::span<const json_row> rows) {
  const auto step_of = [](const json_row& row) { return number_in(row, "step").value_or(1); };
  std::map<std::string, double> last;  // of each run
  for (const json_row& row : rows) {
    double& step = last[run_of(row)];
    step = std::max(step, step_of(row));
  }
  std::vector<const json_row*> selected;
  for (const json_row& row : rows)
    if (step_of(row) == last.at(run_of(row))) selected.push_back(&row);
  return selected;
}

std::string kind_of(const json_row& row) {
  const std::string kind = text_of(row, "kind");
  return kind.empty() ? layer_kind(text_of(row, "tensor"), {}) : kind;
}

// The totals of plans that have a row for every tensor.
std::vector<json_row> totals_in(const rows_by_plan& s, uint64_t ranks) {
  std::vector<json_row> totals;
  for (const std::string& plan : s.plans)
    if (const auto rows = s.of(plan); rows.size() == s.subjects.size()) totals.push_back(combine(rows, ranks));
  return totals;
}

// The total with the smallest `by` among those that pass.
template <class Passes>
std::optional<json_row> cheapest(std::span<const json_row> totals, const expression& by, Passes&& passes) {
  const json_row* best = nullptr;
  double smallest = 0;
  for (const json_row& total : totals) {
    const auto value = by.number(total);
    if (!value || (best && *value >= smallest) || !passes(total)) continue;
    smallest = *value;
    best = &total;
  }
  return best ? std::optional(*best) : std::nullopt;
}

// Columns of an expression without a number in any total: not measured, or undefined for sums of tensors.
std::vector<std::string> unknown_columns(std::span<const json_row> totals, const expression& e) {
  static const std::set<std::string> texts{"kind", "preset", "choice", "fallback"};  // often null
  std::vector<std::string> unknown;
  for (const std::string& c : e.columns()) {
    const auto is_null = [&](const json_row& total) { return total.value(c, ordered_json()).is_null(); };
    if (!texts.contains(c) && !totals.empty() && std::ranges::all_of(totals, is_null)) unknown.push_back(c);
  }
  return unknown;
}

ordered_json or_null(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }

ordered_json answer(const char* name, const std::string& input, const std::string& kind, const rows_by_plan& s,
                    const best_question& q) {
  ordered_json a{
      {"scope", name},     {"input", or_null(input)}, {"kind", or_null(kind)}, {"condition", q.condition.text()},
      {"by", q.by.text()}, {"plan", nullptr},         {"nearest", nullptr},    {"total", nullptr}};
  const std::vector<json_row> totals = totals_in(s, q.ranks);
  const auto passes = [&](const json_row& total) { return q.condition.holds(total); };
  std::optional<json_row> found = cheapest(totals, q.by, passes);
  if (!found) {
    std::vector<std::string> unknown = unknown_columns(totals, q.condition);
    if (unknown.empty() && std::ranges::any_of(totals, passes)) unknown = unknown_columns(totals, q.by);
    if (!unknown.empty()) {
      a["unknown"] = unknown;
      return a;
    }
  }
  const char* member = "plan";
  if (const auto sum = q.condition.bounded_sum(); !found && sum) {
    found = cheapest(totals, *sum, [](const json_row&) { return true; });
    member = "nearest";
  }
  if (!found) return a;
  a[member] = text_of(*found, "plan");
  a["total"] = std::move(*found);
  return a;
}

std::string numbers(const ordered_json& total) {
  std::string text;
  if (const auto& bytes = total.value("bytes", ordered_json()); bytes.is_number()) {
    text += grouped(bytes.get<uint64_t>()) + " bytes";
    if (const auto& volume = total.value("relative_volume", ordered_json()); volume.is_number())
      text += fmt::format(" ({:.3g} % of dense f32)", 100 * volume.get<double>());
  }
  if (const auto& error = total.value("total_error", ordered_json()); error.is_number())
    text += fmt::format("{}total_error {:.3g}", text.empty() ? "" : ", ", error.get<double>());
  const auto encode = total.value("encode_ns", ordered_json()), decode = total.value("decode_ns", ordered_json());
  if (encode.is_number() && decode.is_number())
    text += ", encode " + duration(encode.get<double>()) + ", decode " + duration(decode.get<double>());
  return text;
}

std::string subject_of(const ordered_json& a) {
  const std::string scope = a.at("scope");
  if (scope == "all") return "all inputs together";
  return text_of(a, "input") + (scope == "kind" ? ", " + a.at("kind").get<std::string>() : "");
}

}  // namespace

ordered_json find_best(std::span<const json_row> rows, const best_question& question) {
  struct input_scopes {
    rows_by_plan model;
    std::map<std::string, rows_by_plan> kinds;
  };
  std::vector<std::string> inputs;
  std::map<std::string, input_scopes> scopes;
  std::map<std::string, cut> cuts;
  for (const json_row& row : rows) {
    cut& finest = cuts.emplace(text_of(row, "input"), cut_of(row)).first->second;
    finest = std::min(finest, cut_of(row));
  }
  rows_by_plan all;
  for (const json_row* last : last_steps(rows)) {
    const json_row& row = *last;
    const std::string input = text_of(row, "input");
    if (is_memcpy(row) || cut_of(row) != cuts.at(input)) continue;
    if (!scopes.contains(input)) inputs.push_back(input);
    scopes[input].model.add(row);
    if (const std::string kind = kind_of(row); !kind.empty()) scopes[input].kinds[kind].add(row);
    all.add(row);
  }
  auto answers = ordered_json::array();
  for (const std::string& input : inputs) {
    const input_scopes& s = scopes.at(input);
    answers.push_back(answer("model", input, "", s.model, question));
    if (s.kinds.size() < 2) continue;
    for (const auto& [kind, layers] : s.kinds) answers.push_back(answer("kind", input, kind, layers, question));
  }
  if (inputs.size() > 1) answers.push_back(answer("all", "", "", all, question));
  return answers;
}

std::string best_text(const ordered_json& answers) {
  std::string text;
  for (const ordered_json& a : answers) {
    const std::string condition = a.at("condition"), by = a.at("by");
    const ordered_json& total = a.at("total");
    const size_t tensors = total.is_null() ? 0 : total.value("tensors", size_t{1});
    const std::string what = subject_of(a) + (tensors > 1 ? fmt::format(" ({} tensors)", tensors) : "");
    if (!a.at("plan").is_null())
      text += fmt::format("{}: the plan of least {} with {} is '{}': {}.\n", what, by, condition,
                          a.at("plan").get<std::string>(), numbers(total));
    else if (!a.at("nearest").is_null())
      text += fmt::format("{}: no plan has {}; the nearest is '{}': {}.\n", what, condition,
                          a.at("nearest").get<std::string>(), numbers(total));
    else if (a.contains("unknown"))
      text += fmt::format("{}: the plan of least {} with {} is unknown, because {} is unknown.\n", what, by, condition,
                          joined(a.at("unknown").get<std::vector<std::string>>(), " and "));
    else
      text += fmt::format("{}: no plan has {}.\n", what, condition);
  }
  return text;
}

}  // namespace dr::compare
