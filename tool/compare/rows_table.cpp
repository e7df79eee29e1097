#include "rows_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "spread_notes.hpp"
#include "tool/show/console.hpp"
#include "tool/show/text_table.hpp"
#include "totals.hpp"

namespace dr::compare {
namespace {

using enum text_table::align;

constexpr size_t widest_line = 140;

struct shown_column {
  std::string heading;
  text_table::align side;
  std::function<std::string(const json_row&)> cell;
};

std::string shown_text(const json_row& row, const char* column) { return without_controls(text_of(row, column)); }

// Distinct names of inputs: the name of the file, or its path if two folders have a file of that name.
class input_names {
 public:
  // column: "input", or "from" for the saved files of runs
  explicit input_names(std::span<const json_row> rows, const char* column = "input") : column_(column) {
    for (const json_row& row : rows) inputs_[file_name(row)].insert(text_of(row, column));
  }
  std::string operator()(const json_row& row) const {
    const std::string name = file_name(row);
    return without_controls(inputs_.at(name).size() == 1 ? name : text_of(row, column_));
  }
  bool differ() const { return inputs_.size() > 1 || (inputs_.size() == 1 && inputs_.begin()->second.size() > 1); }

 private:
  std::string file_name(const json_row& row) const {
    const std::string input = text_of(row, column_);
    return input.starts_with("synth:") ? input : std::filesystem::path(input).filename().string();
  }
  const char* column_;
  std::map<std::string, std::set<std::string>> inputs_;
};

// How a table names the subjects of its rows.
struct subject_names {
  input_names inputs, runs;
  bool steps;

  explicit subject_names(std::span<const json_row> rows)
      : inputs(rows), runs(rows, "from"), steps(std::ranges::any_of(rows, [&](const json_row& row) {
          return row.value("step", json_row()) != rows.front().value("step", json_row());
        })) {}
  bool differ() const { return inputs.differ() || runs.differ() || steps; }
};

std::string count(const json_row& row, const char* column) {
  const auto cell = row.find(column);
  return cell != row.end() && cell->is_number_unsigned() ? grouped(cell->get<uint64_t>()) : std::string();
}

std::string decimal(const json_row& row, const char* column, fmt::format_string<double&> form, double factor = 1) {
  auto value = number_in(row, column);
  if (!value) return {};
  double scaled = *value * factor;
  return fmt::format(form, scaled);
}

std::string microseconds(const json_row& row, const char* column) {
  const auto ns = number_in(row, column);
  if (!ns) return {};
  const double us = *ns / 1000;
  std::string text = us < 9.95   ? fmt::format("{:.2f}", us)
                     : us < 99.5 ? fmt::format("{:.1f}", us)
                                 : fmt::format("{:.0f}", us);
  const auto spread = number_in(row, (std::string(column) + "_spread").c_str());
  if (!spread || *spread < 0.005) return text;
  return text + (*spread < 10 ? fmt::format("±{:.0f}%", 100 * *spread) : "±>999%");
}

std::string speed(const json_row& row, const char* column) {
  const auto value = number_in(row, column);
  if (!value) return {};
  if (*value <= 0) return "never";
  const bool giga = *value >= 1e9;
  return fmt::format("{:.3g} {}b/s", *value / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
}

std::vector<std::string> stages_of(const json_row& row) {
  std::istringstream words(shown_text(row, "plan"));
  return {std::istream_iterator<std::string>(words), {}};
}

// Stages that all of several plans share, in order; memcpy does not count.
std::vector<std::string> shared_stages(std::span<const json_row> rows) {
  std::optional<std::vector<std::string>> shared;
  bool several = false;
  for (const json_row& row : rows) {
    if (is_memcpy(row)) continue;
    const std::vector<std::string> own = stages_of(row);
    if (!shared) shared = own;
    several |= own != *shared;
    std::erase_if(*shared, [&](const std::string& stage) { return std::ranges::find(own, stage) == own.end(); });
  }
  return several ? *shared : std::vector<std::string>();
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string plan_of(const json_row& row, const std::vector<std::string>& shared) {
  if (is_memcpy(row)) return "memcpy (dense)";
  std::vector<std::string> own = stages_of(row);
  std::erase_if(own, [&](const std::string& stage) { return std::ranges::find(shared, stage) != shared.end(); });
  std::string text = own.empty() ? shown_text(row, "plan") : joined(own);
  if (const std::string choice = shown_text(row, "choice"); !choice.empty()) text += " → " + choice;
  const std::string fallback = shown_text(row, "fallback");
  return fallback.empty() || fallback == "none" ? text : text + " (fell back: " + fallback + ")";
}

std::string bits(const json_row& row) {
  std::string text = decimal(row, "index_bits_per_nonzero", "{:.2f}");
  if (text.empty()) return text;
  text += '+' + decimal(row, "value_bits_per_nonzero", "{:.2f}");
  const double order = number_in(row, "order_bytes").value_or(0), r = number_in(row, "r").value_or(0);
  return order > 0 && r > 0 ? text + fmt::format("+{:.2f}", 8 * order / r) : text;
}

std::vector<shown_column> measures() {
  const auto of = [](auto f, auto... arguments) { return [=](const json_row& row) { return f(row, arguments...); }; };
  const auto number = [](const char* column, fmt::format_string<double&> form, double factor = 1) {
    return [=](const json_row& row) { return decimal(row, column, form, factor); };
  };
  return {{"preset", left, of(shown_text, "preset")},
          {"bytes", right, of(count, "bytes")},
          {"volume", right, number("relative_volume", "{:.2f}%", 100)},
          {"bits", right, bits},
          {"error", right, number("total_error", "{:.3g}")},
          {"coding", right, number("relative_l2_error", "{:.3g}")},
          {"energy", right, number("energy_recall", "{:.1f}%", 100)},
          {"sparsify", right, of(microseconds, "sparsify_ns")},
          {"encode", right, of(microseconds, "encode_ns")},
          {"decode", right, of(microseconds, "decode_ns")},
          {"merge", right, of(microseconds, "merge_ns")},
          {"step", right, of(microseconds, "step_ns")},
          {"pays below", right, of(speed, "pays_below")},
          {"verdict", left, of(shown_text, "verdict")},
          {"timed", left, [](const json_row& row) {
             return shown_text(row, "timed") == "python" ? std::string("in Python") : std::string();
           }}};
}

template <class F>
bool differ(std::span<const json_row> rows, F&& f) {
  return std::ranges::any_of(rows, [&](const json_row& row) { return f(row) != f(rows.front()); });
}

std::string subject_text(const json_row& row, const subject_names& names) {
  const std::string tensor = shown_text(row, "tensor"), kind = shown_text(row, "kind");
  std::string text = names.inputs.differ() || tensor.empty() ? names.inputs(row) : "";
  if (!tensor.empty()) text += (text.empty() ? "" : "  ") + tensor;
  if (!kind.empty()) text += ", " + kind;
  if (const std::string d = count(row, "d"); !d.empty()) text += ", d = " + d;
  if (names.steps) text += ", step " + count(row, "step");
  if (names.runs.differ()) text += ", of " + (run_of(row).empty() ? "this run" : names.runs(row));
  return text;
}

// A line of the table: a row, or a heading above the rows that follow.
struct line {
  const json_row* row = nullptr;
  std::string heading;
};

// A heading may be longer than its column: a mark replaces it until the lines are complete.
std::string mark_of(size_t heading) { return '\x01' + std::to_string(heading); }

std::string as_text(const std::vector<line>& lines, const std::vector<shown_column>& columns) {
  text_table t;
  const bool headed = std::ranges::any_of(lines, [](const line& l) { return l.row == nullptr; });
  for (const shown_column& c : columns) {
    std::vector<std::string> cells;
    const bool first = &c == &columns.front();
    for (size_t i = 0; i < lines.size(); ++i)
      cells.push_back(lines[i].row ? c.cell(*lines[i].row) : first ? mark_of(i) : std::string());
    t.column(c.heading, c.side, std::move(cells));
  }
  std::string text = t.text(headed ? "  " : "", widest_line);
  size_t from = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].row) continue;
    const std::string mark = "  " + mark_of(i) + '\n';
    from = text.find(mark, from);
    if (from == text.npos) break;
    text.replace(from, mark.size(), lines[i].heading + '\n');
    from += lines[i].heading.size();
  }
  return text;
}

std::string as_markdown(std::span<const json_row> rows, const std::vector<shown_column>& columns) {
  text_table t;
  for (const shown_column& c : columns) {
    std::vector<std::string> cells;
    for (const json_row& row : rows) cells.push_back(c.cell(row));
    t.column(c.heading, c.side, std::move(cells));
  }
  return t.markdown();
}

std::string table(std::vector<json_row> rows, const table_request& request, std::vector<shown_column> further) {
  const bool totals = !further.empty();
  const auto several = [&](auto&& f) { return differ(rows, f); };
  const subject_names names(rows);
  const bool tensors = !totals && several([](const json_row& row) { return text_of(row, "tensor"); });
  const bool subjects = names.differ() || tensors;
  // The total has the copy of all layers.
  if (subjects && !totals) std::erase_if(rows, is_memcpy);
  if (rows.empty()) return "no rows\n";
  const bool plans = several([](const json_row& row) { return row.value("plan", json_row()); });
  const bool sections = request.sections && request.style == table_style::text && plans && subjects;

  const std::vector<std::string> shared = shared_stages(rows);
  std::vector<shown_column> columns;
  const shown_column plan{"plan", left, [&](const json_row& row) { return plan_of(row, shared); }};
  const shown_column subject{"tensor", left, [&](const json_row& row) { return subject_text(row, names); }};
  std::string text;
  if (!plans && subjects) {
    text = shown_text(rows.front(), "plan") + '\n';
    columns = {subject};
  } else {
    if (!shared.empty()) text = "all plans: " + joined(shared) + '\n';
    columns = {plan};
    if (!sections && subjects) columns.push_back(subject);
  }
  for (shown_column& c : measures()) columns.push_back(std::move(c));
  for (shown_column& c : further) columns.push_back(std::move(c));

  if (request.style == table_style::markdown) return text + (text.empty() ? "" : "\n") + as_markdown(rows, columns);
  std::vector<line> lines;
  std::string before;
  for (const json_row& row : rows) {
    const std::string name = subject_text(row, names);
    if (sections && name != before) lines.push_back({nullptr, name});
    before = name;
    lines.push_back({&row, {}});
  }
  text += as_text(lines, columns);
  std::vector<named_times> times;
  for (const json_row& row : rows) {
    const std::string of = subjects ? " (" + subject_text(row, names) + ")" : "";
    if (!is_memcpy(row) && number_in(row, "rounds") && text_of(row, "timed") != "python")
      times.push_back(times_of((plans || !subjects ? plan_of(row, shared) : "") + of, row));
  }
  for (const std::string& note : spread_notes(times, !subjects))
    for (const std::string& part : wrapped(note, widest_line)) text += part + '\n';
  return text;
}

// The dense steps that the steps of totals are compared with: a line per input; in Markdown a paragraph.
std::string dense_steps(std::span<const json_row> totals, table_style style) {
  const subject_names names(totals);
  std::vector<std::string> lines;
  for (const json_row& total : totals) {
    const auto dense = number_in(total, "dense_step_ns"), half = number_in(total, "bf16_step_ns");
    if (!dense || !half || !number_in(total, "step_ns")) continue;
    const std::string of = names.differ() ? subject_text(total, names) + ": " : "";
    const std::string line = fmt::format("{}dense steps of all tensors: {}{}", of, duration(*dense),
                                         *half < *dense ? ", in 16 bits " + duration(*half) : "");
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
  }
  const bool markdown = style == table_style::markdown;
  std::string text = markdown && !lines.empty() ? "\n" : "";
  for (const std::string& line : lines) text += markdown ? markdown_text(line) + "\n\n" : line + '\n';
  return text;
}

// A line per tensor that is the worst of some plan; in Markdown a paragraph after the table.
std::string worst_tensors(std::span<const json_row> totals, table_style style) {
  const bool markdown = style == table_style::markdown;
  struct worst {
    std::string name;
    double low, high;
    std::set<std::string> plans;
  };
  const input_names inputs(totals);
  std::vector<worst> list;
  for (const json_row& total : totals) {
    const auto error = number_in(total, "worst_error");
    const std::string name = (inputs.differ() ? inputs(total) + " " : "") + shown_text(total, "worst_tensor");
    if (!error) continue;
    const auto known = std::ranges::find(list, name, &worst::name);
    worst& w = known == list.end() ? list.emplace_back(worst{name, *error, *error, {}}) : *known;
    w.low = std::min(w.low, *error);
    w.high = std::max(w.high, *error);
    w.plans.insert(text_of(total, "plan"));
  }
  std::string text = markdown && !list.empty() ? "\n" : "";
  for (const worst& w : list) {
    const std::string low = fmt::format("{:.3g}", w.low), high = fmt::format("{:.3g}", w.high);
    text += fmt::format("worst tensor of {} plan{}: {}, error {}{}{}", w.plans.size(), w.plans.size() == 1 ? "" : "s",
                        markdown ? markdown_text(w.name) : w.name, low, high == low ? "" : " to " + high,
                        markdown ? "\n\n" : "\n");
  }
  return text;
}

}  // namespace

std::string rows_table(std::span<const json_row> rows, const table_request& request) {
  return table({rows.begin(), rows.end()}, request, {});
}

std::string totals_table(std::span<const json_row> totals, const table_request& request) {
  const shown_column tensors{"of", right, [](const json_row& row) { return count(row, "tensors"); }};
  return table({totals.begin(), totals.end()}, request, {tensors}) + dense_steps(totals, request.style) +
         worst_tensors(totals, request.style);
}

std::string table_legend(std::span<const json_row> rows, bool totals, const std::string& link) {
  std::string text =
      "volume: of dense f32. bits: index + value per nonzero (r). error: relative L2 of the decoded tensor against the "
      "dense gradient; coding: against the selected values. energy: the share of |g|^2 on the decoded support. "
      "Times: medians in µs ± (75th - 25th percentile) / median; merge: one frame per rank.";
  const auto any = [&](const char* column) {
    return std::ranges::any_of(rows, [&](const json_row& row) { return number_in(row, column).has_value(); });
  };
  if (totals)
    text += " of: tensors in the total, which are exchanged one after another; the worst has the largest error.";
  if (any("pays_below"))
    text +=
        " pays below: a model: the speed of a rank's link below which the plan's exchange beats a ring "
        "all-reduce of the dense tensor in its own type.";
  if (any("step_ns"))
    text += fmt::format(
        " step: a model of the exchange{} from these times; verdict: against the faster ring all-reduce, dense or in "
        "16 bits, whose computing is not counted; even: within the spread.",
        link.empty() ? "" : " over links of " + link);
  std::string lines;
  for (const std::string& line : wrapped(text, widest_line)) lines += line + '\n';
  return lines;
}

}  // namespace dr::compare
