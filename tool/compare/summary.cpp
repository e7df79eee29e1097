#include "summary.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "shown_columns.hpp"
#include "tool/predict/training_evidence.hpp"
#include "tool/read/plan_text.hpp"

namespace dr::compare {
namespace {

constexpr double compressed = 0.45;  // of dense f32: less than dense bf16

std::string labelled(const std::string& label, const std::string& text, size_t width) {
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
  return !error ? "" : *error == 0 ? ", exact" : ", coding error " + share_text(*error);
}

// "×397, coding error 4.7 %, 27.3 µs"
std::string numbers(const json_row& row) {
  const auto time = whole_time(row);
  return smaller_text(row) + error_text(row) + (time ? ", " + duration(time->middle) : "");
}

// Whether rows have a verdict on a link, of which "unknown" has no step.
bool has_link(std::span<const json_row> rows) {
  return std::ranges::any_of(rows, [](const json_row& row) {
    return number_in(row, "step_ns").has_value() || !text_of(row, "verdict").empty();
  });
}

// A plan of the row; none if a saved row names codecs that are not here.
std::optional<plan> plan_in(const json_row* row) try {
  return row ? std::optional<plan>(text_of(*row, "plan")) : std::nullopt;
} catch (const error&) {
  return std::nullopt;
}

bool halves_exactly(const json_row& row) {
  const parsed_stages parsed(text_of(row, "plan"));
  const dr_stage* const value = find_stage(parsed.stages(), "value");
  const dr_stage_param* const type = value ? find_param(*value, "type") : nullptr;
  return type && std::string_view(type->text) == "bf16" && text_of(row, "dtype") == "f32" &&
         number_in(row, "relative_l2_error") == 0.0;
}

// Whether what is not sent waits in a residual, of all plans that do not send everything.
bool all_wait(std::span<const json_row> rows) {
  bool any = false;
  for (const json_row& row : rows) {
    if (!has_plan(row) || !read_plan(text_of(row, "plan")).sparsifies) continue;
    const parsed_stages parsed(text_of(row, "plan"));
    const dr_stage* const feedback = find_stage(parsed.stages(), "feedback");
    if (!feedback || std::string_view(feedback->name) != "residual") return false;
    any = true;
  }
  return any;
}

// What training showed for the smallest plan, and the smallest of those with which models became as good as by dense ones.
std::string training_text(std::span<const json_row> rows, const json_row* smallest) {
  const json_row* const trained = least(rows, [](const json_row& row) -> std::optional<double> {
    const auto volume = number_in(row, "relative_volume");
    if (volume.value_or(1) >= compressed) return std::nullopt;
    const std::optional<plan> method = plan_in(&row);
    return method && predict::trained_as_dense(*method) ? volume : std::nullopt;
  });
  // ("…, in 300 steps of one GPT": `predict` has these)
  const auto words_of = [](const json_row* row) {
    const std::optional<plan> method = plan_in(row);
    const std::string words = method ? predict::training_evidence(*method) : "";
    return words.substr(0, words.find(", in "));
  };
  std::string text;
  if (trained && trained != smallest) {
    text = smaller_text(*trained) + ": " + whole_plan(*trained);
    if (const std::string words = words_of(trained); !words.empty()) text += ": " + words;
  }
  if (const std::string words = words_of(smallest); !words.empty())
    text += (text.empty() ? "the smallest: " : ". The smallest: ") + words;
  return text;
}

// A plan in words, unless a line above has it.
std::string plan_or_label(const json_row* row, const json_row* smallest, const json_row* fastest,
                          const json_row* exact) {
  return row == fastest    ? "the fastest"
         : row == smallest ? "the smallest"
         : row == exact    ? "the best exact"
                           : whole_plan(*row);
}

// winner: winner_of(rows), by name.
std::string pays_text(std::span<const json_row> rows, const link_facts& net, const json_row* winner,
                      const std::string& name) {
  const std::string among = net.ranks ? fmt::format(" among {} ranks", net.ranks) : "";
  if (!has_link(rows)) {
    if (winner) return fmt::format("below {}: {}", speed_text(*number_in(*winner, "pays_below_bf16")), name);
    const bool never = std::ranges::all_of(
        rows, [](const json_row& row) { return is_memcpy(row) || number_in(row, "pays_below_bf16") == 0.0; });
    return (never ? "none, on no link" : "unknown") + among + ", against an all-reduce of dense bf16";
  }
  const auto count = [&](auto&& verdicts) {
    return std::ranges::count_if(
        rows, [&](const json_row& row) { return !is_memcpy(row) && verdicts(text_of(row, "verdict")); });
  };
  const auto paying = count([](const std::string& verdict) { return verdict == "pays"; });
  const auto known = count([](const std::string& verdict) { return !verdict.empty() && verdict != "unknown"; });
  const auto unknown = count([](const std::string&) { return true; }) - known;
  std::string on = "on " + net.text + among;
  if (known == 0) return "unknown, " + on + ": not modelled";
  if (unknown > 0) on += fmt::format(", {} unknown", unknown);
  if (!winner) return fmt::format("none of {} plans, {}", known, on);
  return fmt::format("{} of {} plans, {}; the shortest step, {}: {}", paying, known, on,
                     duration(*number_in(*winner, "step_ns")), name);
}

}  // namespace

std::string link_words(const std::string& text, double bits_per_second) {
  const bool in_bytes = text.find("B/s") != text.npos && bits_per_second > 0;
  return in_bytes ? text + " = " + speed_text(bits_per_second) : text;
}

std::vector<json_row> together(std::span<const json_row> rows, uint64_t ranks) {
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
    sums.push_back(combine(of_plan, ranks));
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
  const auto line = [&](const char* label, const json_row* row, const std::string& plan) {
    if (row) text += labelled(label, plan, width);
  };
  const auto whole = [&](const json_row* row) { return row ? numbers(*row) + ": " + whole_plan(*row) : ""; };
  line("smallest:", smallest, whole(smallest));
  line("fastest:", fastest, fastest == smallest ? "the smallest" : whole(fastest));
  const auto is_exact = [](const json_row* row) { return row && number_in(*row, "relative_l2_error") == 0.0; };
  if (!is_exact(smallest) && !is_exact(fastest)) line("best exact:", exact, whole(exact));  // (their lines say so)
  const json_row* const winner = winner_of(rows);
  text += labelled(
      "pays:", pays_text(rows, net, winner, winner ? plan_or_label(winner, smallest, fastest, exact) : std::string()),
      width);
  if (const std::string training = training_text(rows, smallest); !training.empty())
    text += labelled("training:", training, width);
  const bool halves = std::ranges::all_of(rows, [](const json_row& row) { return text_of(row, "dtype") == "f32"; });
  const bool exactly =
      std::ranges::any_of(rows, [](const json_row& row) { return has_plan(row) && halves_exactly(row); });
  if (halves)
    text += labelled("dense bf16:",
                     exactly ? "×2, exact here (values of 8 bits), else 0.2 % off: try it first"
                             : "×2, error 0.2 % or less, almost no computing: try it first",
                     width);
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
  const bool transforms = std::ranges::any_of(rows, [](const json_row& row) {
    if (!has_plan(row)) return false;
    const plan_reading plan = read_plan(text_of(row, "plan"));
    return !plan.transform.empty() && !plan.coefficients;
  });
  std::string text;
  if (request.wide)
    text =
        "smaller: than dense f32. bits: index + value (+ order) per nonzero (r). error: relative L2 of the decoded "
        "tensor against the dense gradient; coding: against the selected values. energy: share of the gradient's "
        "squared norm that is sent. Times: medians ± (75th - 25th percentile) / median, where above 10 %; merge: one "
        "frame per rank; cpu: CPU time "
        "/ wall time of an encode and a decode, where they differ." +
        std::string(transforms ? " transform=lowrank: the error of all values." : "");
  else
    text = std::string("coding error: of the values that are sent") + (transforms ? " (lowrank: of all)" : "") +
           (all_wait(rows) ? "; the residual sends the others later." : ".") +
           " encode + decode: with the sparsifier; ~: as fast as the fastest.";
  if (totals)
    text += " of: tensors in the total, which are exchanged one after another; the worst has the largest error.";
  if (any("step_ns"))
    text += fmt::format(
        " step: a model of the exchange{} from these times; verdict: against the faster ring all-reduce, dense or in "
        "16 bits, whose computing is not counted; even: within the spread.",
        net.text.empty() ? "" : fmt::format(" over links of {} among {}", net.text, ranks));
  else if (any("pays_below"))
    text += fmt::format(
        " pays below: on slower links than this, {} finish sooner than with dense {} (a model without "
        "overlap; --link has more).",
        ranks, request.wide ? std::string("f32 or bf16") : std::string("bf16"));
  if (short_floats) text += " Where the input has 16 bits, dense means the dense tensor in its own type.";
  std::string lines;
  for (const std::string& line : wrapped(text, request.width)) lines += line + '\n';
  return lines;
}

}  // namespace dr::compare
