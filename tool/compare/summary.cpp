#include "summary.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "shown_columns.hpp"
#include "tool/read/plan_text.hpp"

namespace dr::compare {
namespace {

constexpr double compressed = 0.45;  // of dense f32: less than dense bf16

std::string lines_of(const std::string& label, const std::string& text, size_t width) {
  constexpr size_t indent = 12;
  std::string all, lead = label + std::string(indent - std::min(indent, label.size()), ' ');
  // (wrapped indents by two)
  for (const std::string& line : wrapped(text, width - indent)) {
    all += lead + line + '\n';
    lead = std::string(indent - 2, ' ');
  }
  return all;
}

const json_row* least(std::span<const json_row> rows, const std::function<std::optional<double>(const json_row&)>& of) {
  const json_row* best = nullptr;
  std::optional<double> smallest;
  for (const json_row& row : rows)
    if (const auto value = is_memcpy(row) ? std::nullopt : of(row); value && (!smallest || *value < *smallest))
      smallest = value, best = &row;
  return best;
}

std::string error_text(const json_row& row) {
  const auto error = number_in(row, "relative_l2_error");
  return error ? ", coding error " + share_text(*error) : std::string();
}

// "×397, coding error 4.7 %, 27.3 µs"
std::string numbers(const json_row& row) {
  const auto time = whole_time(row);
  return smaller_text(row) + error_text(row) + (time ? ", " + duration(time->middle) : "");
}

bool has_link(std::span<const json_row> rows) {
  return std::ranges::any_of(rows, [](const json_row& row) { return number_in(row, "step_ns").has_value(); });
}

std::string pays_text(std::span<const json_row> rows, const link_facts& net) {
  const json_row* const winner = winner_of(rows);
  const std::string among = net.ranks ? fmt::format(" among {} ranks", net.ranks) : "";
  if (!has_link(rows)) {
    if (!winner) return "none, on no link" + among + ", against an all-reduce of dense bf16";
    return fmt::format("below {}: {}", speed_text(*number_in(*winner, "pays_below_bf16")), short_plan(*winner, rows));
  }
  const auto paying = std::ranges::count_if(rows, [](const json_row& r) { return text_of(r, "verdict") == "pays"; });
  const auto all = std::ranges::count_if(rows, [](const json_row& row) { return !is_memcpy(row); });
  if (!winner) return fmt::format("none of {} plans, on {}{}", all, net.text, among);
  return fmt::format("{} of {} plans, on {}{}; the shortest step, {}: {}", paying, all, net.text, among,
                     duration(*number_in(*winner, "step_ns")), short_plan(*winner, rows));
}

}  // namespace

std::vector<json_row> together(std::span<const json_row> rows) {
  rows_by_plan by_plan;
  for (const json_row& row : rows)
    if (!is_memcpy(row)) by_plan.add(row);
  std::vector<json_row> sums;
  for (const std::string& plan : by_plan.plans) {
    const std::vector<const json_row*> of_plan = by_plan.of(plan);
    if (of_plan.size() != by_plan.subjects.size()) continue;
    if (of_plan.size() == 1) {
      sums.push_back(*of_plan[0]);
      continue;
    }
    sums.push_back(combine(of_plan));
    for (const char* const column : {"pays_below", "pays_below_bf16"}) {
      std::optional<double> lowest;
      bool known = true;
      for (const json_row* row : of_plan) {
        const auto rate = number_in(*row, column);
        known &= rate.has_value();
        if (rate) lowest = std::min(lowest.value_or(*rate), *rate);
      }
      if (known && lowest) sums.back()[column] = *lowest;
    }
  }
  return sums;
}

const json_row* winner_of(std::span<const json_row> rows) {
  if (has_link(rows))
    return least(rows, [](const json_row& row) {
      return text_of(row, "verdict") == "pays" ? number_in(row, "step_ns") : std::nullopt;
    });
  return least(rows, [](const json_row& row) -> std::optional<double> {
    const auto rate = number_in(row, "pays_below_bf16");
    return rate && *rate > 0 ? std::optional(-*rate) : std::nullopt;
  });
}

std::string summary_text(std::span<const json_row> rows, const link_facts& net, size_t width) {
  if (std::ranges::count_if(rows, [](const json_row& row) { return !is_memcpy(row); }) < 2) return {};
  const auto volume = [](const json_row& row) { return number_in(row, "relative_volume"); };
  const auto is_small = [&](const json_row& row) { return volume(row).value_or(1) < compressed; };
  const json_row* const smallest = least(rows, volume);
  const json_row* const fastest = least(rows, [&](const json_row& row) -> std::optional<double> {
    const auto time = whole_time(row);
    return time && is_small(row) ? std::optional(time->middle) : std::nullopt;
  });
  const json_row* const exact = least(rows, [&](const json_row& row) {
    return is_small(row) && number_in(row, "relative_l2_error") == 0.0 ? volume(row) : std::nullopt;
  });
  std::string text;
  for (const auto& [label, row] : {std::pair("smallest:", smallest), {"fastest:", fastest}, {"best exact:", exact}})
    if (row) text += lines_of(label, numbers(*row) + ": " + short_plan(*row, rows), width);
  text += lines_of("pays:", pays_text(rows, net), width);
  const bool halves = std::ranges::all_of(rows, [](const json_row& row) { return text_of(row, "dtype") == "f32"; });
  if (halves) text += lines_of("dense bf16:", "×2, error 0.2 % or less, almost no computing: try it first", width);
  return text;
}

std::string table_legend(std::span<const json_row> rows, bool totals, const link_facts& net,
                         const table_request& request) {
  const auto any = [&](const char* column) {
    return std::ranges::any_of(rows, [&](const json_row& row) { return number_in(row, column).has_value(); });
  };
  const std::string ranks = net.ranks ? fmt::format("{} ranks", net.ranks) : "the ranks";
  const bool short_floats = std::ranges::any_of(
      rows, [](const json_row& row) { return !text_of(row, "dtype").empty() && text_of(row, "dtype") != "f32"; });
  std::string text;
  if (request.wide)
    text =
        "smaller: than dense f32. bits: index + value (+ order) per nonzero (r). error: relative L2 of the decoded "
        "tensor against the dense gradient; coding: against the selected values. energy: the share of |g|² on the "
        "decoded support. Times: medians ± (75th - 25th percentile) / median; merge: one frame per rank; cpu: CPU time "
        "/ wall time of an encode and a decode, where they differ.";
  else
    text =
        "coding error: of the values that are sent. encode + decode: with the sparsifier; ~: as fast as the fastest.";
  const bool transforms = std::ranges::any_of(rows, [](const json_row& row) {
    if (is_memcpy(row)) return false;
    const plan_reading plan = read_plan(text_of(row, "plan"));
    return !plan.transform.empty() && !plan.coefficients;
  });
  if (transforms) text += " transform=lowrank: the error of all values.";
  if (totals)
    text += " of: tensors in the total, which are exchanged one after another; the worst has the largest error.";
  if (any("step_ns"))
    text += fmt::format(
        " step: a model of the exchange{} from these times; verdict: against the faster ring all-reduce, dense or in "
        "16 bits, whose computing is not counted; even: within the spread.",
        net.text.empty() ? "" : fmt::format(" over links of {} among {}", net.text, ranks));
  else if (any("pays_below"))
    text += fmt::format(" pays below: on slower links {} finish sooner than with dense {} (a model; --link has more).",
                        ranks, request.wide ? std::string("f32 or bf16") : std::string("bf16"));
  if (short_floats) text += " Where the input has 16 bits, dense means the dense tensor in its own type.";
  std::string lines;
  for (const std::string& line : wrapped(text, request.width)) lines += line + '\n';
  return lines;
}

}  // namespace dr::compare
