#include "rows_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "plan_text.hpp"
#include "text_table.hpp"

namespace dr::compare {
namespace {

using enum text_table::align;

constexpr size_t widest_line = 140;

struct shown_column {
  std::string heading;
  text_table::align side;
  std::function<std::string(const json_row&)> cell;
};

std::optional<double> number_in(const json_row& row, const char* column) {
  const auto cell = row.find(column);
  if (cell == row.end() || !cell->is_number()) return std::nullopt;
  return cell->get<double>();
}

// Text of a file is for no terminal to obey.
std::string plain(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}
std::string shown_text(const json_row& row, const char* column) { return plain(text_of(row, column)); }

std::string file_name(const json_row& row) {
  const std::string input = shown_text(row, "input");
  return input.starts_with("synth:") ? input : std::filesystem::path(input).filename().string();
}

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
  return spread && *spread >= 0.01 ? text + fmt::format("±{:.0f}%", 100 * *spread) : text;
}

std::string speed(const json_row& row, const char* column) {
  const auto value = number_in(row, column);
  if (!value) return {};
  if (*value <= 0) return "never";
  const bool giga = *value >= 1e9;
  return fmt::format("{:.3g} {}b/s", *value / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
}

std::string plan_of(const json_row& row, const std::string& shared_sparsifier) {
  const std::string plan = shown_text(row, "plan");
  if (plan == "memcpy") return "memcpy (dense)";
  if (shared_sparsifier.empty()) return plan;
  return read_plan(plan).without_sparsify;
}

// The sparsifier of all plans, "" if they have several or none.
std::string sparsifier_of(std::span<const json_row> rows) {
  std::string shared;
  for (const json_row& row : rows) {
    if (is_memcpy(row)) continue;
    const std::string own = read_plan(text_of(row, "plan")).sparsify;
    if (!shared.empty() && own != shared) return {};
    shared = own;
  }
  return shared == "sparsify=none" ? std::string() : shared;
}

std::vector<shown_column> measures() {
  const auto of = [](auto f, auto... arguments) { return [=](const json_row& row) { return f(row, arguments...); }; };
  const auto number = [](const char* column, fmt::format_string<double&> form, double factor = 1) {
    return [=](const json_row& row) { return decimal(row, column, form, factor); };
  };
  return {{"preset", left, of(shown_text, "preset")},
          {"choice", left, of(shown_text, "choice")},
          {"fallback", left,
           [](const json_row& row) {
             const auto f = shown_text(row, "fallback");
             return f == "none" ? "" : f;
           }},
          {"bytes", right, of(count, "bytes")},
          {"volume", right, number("relative_volume", "{:.2f}%", 100)},
          {"index", right, number("index_bits_per_nonzero", "{:.2f}")},
          {"value", right, number("value_bits_per_nonzero", "{:.2f}")},
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

std::string subject_text(const json_row& row, bool inputs, bool steps) {
  const std::string tensor = shown_text(row, "tensor"), kind = shown_text(row, "kind");
  std::string text = inputs || tensor.empty() ? file_name(row) : "";
  if (!tensor.empty()) text += (text.empty() ? "" : "  ") + tensor;
  if (!kind.empty()) text += ", " + kind;
  if (const std::string d = count(row, "d"); !d.empty()) text += ", d = " + d;
  if (steps) text += ", step " + count(row, "step");
  return text;
}

// Lines of the table: a row, or a heading over the rows that follow.
struct line {
  const json_row* row = nullptr;
  std::string heading;
};

std::string as_text(const std::vector<line>& lines, const std::vector<shown_column>& columns) {
  text_table t;
  const bool headed = std::ranges::any_of(lines, [](const line& l) { return l.row == nullptr; });
  for (const shown_column& c : columns) {
    std::vector<std::string> cells;
    const bool first = &c == &columns.front();
    for (const line& l : lines)
      cells.push_back(l.row ? (first && headed ? "  " : "") + c.cell(*l.row) : first ? l.heading : std::string());
    t.column(c.heading, c.side, std::move(cells));
  }
  return t.text("", widest_line);
}

std::string as_markdown(std::span<const json_row> rows, const std::vector<shown_column>& columns) {
  std::string head, rule;
  std::vector<std::string> body(rows.size());
  for (const shown_column& c : columns) {
    std::vector<std::string> cells;
    for (const json_row& row : rows) cells.push_back(c.cell(row));
    if (std::ranges::all_of(cells, [](const std::string& text) { return text.empty(); })) continue;
    head += "| " + c.heading + ' ';
    rule += c.side == left ? "|---" : "|--:";
    for (size_t i = 0; i < rows.size(); ++i) {
      std::string text;
      for (const char letter : cells[i])
        text += letter == '|' || letter == '<' || letter == '`' ? std::string("\\") + letter : std::string(1, letter);
      body[i] += "| " + text + ' ';
    }
  }
  std::string text = head + "|\n" + rule + "|\n";
  for (const std::string& row : body) text += row + "|\n";
  return text;
}

std::string table(std::span<const json_row> rows, const table_request& request, std::vector<shown_column> further) {
  if (rows.empty()) return "no rows\n";
  const bool totals = !further.empty();
  const std::string sparsifier = sparsifier_of(rows);
  const bool inputs = differ(rows, file_name),
             steps = differ(rows, [](const json_row&row) { return row.value("step", json_row()); });
  const bool tensors = !totals && differ(rows, [](const json_row& row) { return text_of(row, "tensor"); });
  const bool several_plans =
      differ(rows, [&](const json_row& row) { return is_memcpy(row) ? json_row() : row.value("plan", json_row()); });
  const bool sections =
      request.sections && request.style == table_style::text && several_plans && (inputs || tensors || steps);

  std::vector<shown_column> columns;
  std::string text;
  const shown_column plan{"plan", left, [&](const json_row& row) { return plan_of(row, sparsifier); }};
  const shown_column subject{"tensor", left, [&](const json_row& row) { return subject_text(row, inputs, steps); }};
  const bool one_plan = !several_plans && (inputs || tensors || steps);
  if (one_plan)
    text += shown_text(rows.front(), "plan") + '\n';
  else if (!sparsifier.empty())
    text += sparsifier + '\n';
  if (one_plan)
    columns.push_back(subject);
  else
    columns.push_back(plan);
  if (!one_plan && !sections && (inputs || tensors || steps)) columns.push_back(subject);
  for (shown_column& c : measures()) columns.push_back(std::move(c));
  for (shown_column& c : further) columns.push_back(std::move(c));

  if (request.style == table_style::markdown) return text + (text.empty() ? "" : "\n") + as_markdown(rows, columns);
  std::vector<line> lines;
  std::string before;
  for (const json_row& row : rows) {
    const std::string name = subject_text(row, inputs, steps);
    if (sections && name != before) lines.push_back({nullptr, name});
    before = name;
    lines.push_back({&row, {}});
  }
  return text + as_text(lines, columns);
}

}  // namespace

std::string rows_table(std::span<const json_row> rows, const table_request& request) {
  return table(rows, request, {});
}

std::string totals_table(std::span<const json_row> totals, const table_request& request) {
  return table(totals, request,
               {{"tensors", right, [](const json_row& row) { return count(row, "tensors"); }},
                {"worst tensor", left, [](const json_row& row) {
                   const std::string error = decimal(row, "worst_error", "{:.3g}");
                   return error.empty() ? std::string() : shown_text(row, "worst_tensor") + " (" + error + ")";
                 }}});
}

const char* table_legend() {
  return "volume: of dense f32. index, value: bits a nonzero (r). error: relative L2 of what arrives, against the "
         "dense gradient;\n"
         "coding: against what the sparsifier kept. energy: the share of |g|^2 on the support that arrives. Times: "
         "medians in µs ±\n"
         "(75th - 25th percentile) / median.\n";
}

}  // namespace dr::compare
