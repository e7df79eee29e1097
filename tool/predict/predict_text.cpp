#include "predict_text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tool/show/console.hpp"
#include "tool/show/text_table.hpp"

namespace dr::predict {
namespace {

using compare::csv_cell;
using compare::text_table;
using nlohmann::ordered_json;

std::string scaled(double x, double base, std::initializer_list<const char*> units) {
  if (x == 0) return "0";
  for (const char* unit : units) {
    if (std::abs(x) < 999.5 || unit == *(units.end() - 1))
      return fmt::format("{:.{}f} {}", x, x < 10 ? 2 : x < 100 ? 1 : 0, unit);
    x /= base;
  }
  return {};
}

using shown = std::function<std::string(double)>;

void number_column(text_table& t, const ordered_json& rows, const char* heading, const char* key, const shown& show) {
  std::vector<std::string> cells;
  for (const ordered_json& row : rows) {
    const ordered_json& value = row.at(key);
    cells.push_back(value.is_number() ? show(value.get<double>()) : value.is_string() ? value.get<std::string>() : "");
  }
  t.column(heading, text_table::align::right, std::move(cells));
}

// "3 Gb/s"; "above 1 Gb/s" and "1 Gb/s to 3 Gb/s" for a range with a lower limit.
void limit_column(text_table& t, const ordered_json& rows, const char* heading, const char* upper, const char* lower,
                  const shown& show) {
  std::vector<std::string> cells;
  for (const ordered_json& row : rows) {
    const ordered_json &to = row.at(upper), &from = row.at(lower);
    std::string text = to.is_number() ? show(to.get<double>()) : to.is_string() ? to.get<std::string>() : "";
    if (from.is_number())
      text = text.empty() ? "above " + show(from.get<double>()) : show(from.get<double>()) + " to " + text;
    cells.push_back(std::move(text));
  }
  t.column(heading, text_table::align::right, std::move(cells));
}

std::string what_if_text(const ordered_json& what_if) {
  text_table t;
  std::vector<std::string> x;
  const std::string kind = what_if.at("kind");
  for (const ordered_json& value : what_if.at("x"))
    x.push_back(kind == "bandwidth" ? rate_text(value.get<double>()) : fmt::format("{:g}", value.get<double>()));
  t.column(kind, text_table::align::right, std::move(x));
  for (const ordered_json& series : what_if.at("series")) {
    std::vector<std::string> cells;
    for (const ordered_json& y : series.at("step_ns")) cells.push_back(y.is_number() ? time_text(y.get<double>()) : "");
    t.column(fmt::format("[{}]", series.at("number").get<int>()), text_table::align::right, std::move(cells));
  }
  return fmt::format("\nStep by {}:\n", what_if.at("axis").get<std::string>()) + t.text("  ");
}

// The order of rows in the table: by step, those without a comparable time last.
std::vector<size_t> by_step(const ordered_json& rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const bool known = rows[i].at("step_ns").is_number(), complete = rows[i].at("verdict") != "incomplete";
    return std::pair(!known || !complete, known ? rows[i].at("step_ns").get<double>() : 0.0);
  };
  std::ranges::stable_sort(order, {}, key);
  return order;
}

// Columns that explain a step; a narrow terminal lacks them, the first ones first.
constexpr const char* details[] = {"perfect", "no overlap", "sent", "link", "merge", "encode", "exposed", "to batch"};

// numbers: of the candidates, as --show takes them.
text_table candidates(const ordered_json& rows, const std::vector<size_t>& numbers,
                      const std::set<std::string>& left_out) {
  text_table t;
  std::vector<std::string> names, verdicts;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ordered_json& row = rows[i];
    names.push_back(fmt::format("[{}] {}{}", numbers[i], row.at("candidate").get<std::string>(),
                                row.at("by") == "formula" ? " (by formula)" : ""));
    verdicts.push_back(row.at("verdict").is_string() ? row.at("verdict").get<std::string>()
                       : row.at("error").is_string() ? "unsupported"
                                                     : "");
  }
  t.column("candidate", text_table::align::left, std::move(names));
  const auto number = [&](const char* heading, const char* key, const shown& show) {
    if (!left_out.contains(heading)) number_column(t, rows, heading, key, show);
  };
  number("step", "step_ns", time_text);
  number("error", "relative_error", [](double x) { return fmt::format("{:.2g}", x); });
  number("whole\ngradient", "whole_ns", time_text);
  number("exposed", "exposed_ns", time_text);
  number("encode", "encode_ns", time_text);
  number("merge", "merge_ns", time_text);
  number("link", "link_ns", time_text);
  number("sent", "bytes", bytes_text);
  number("no overlap", "no_overlap_ns", time_text);
  number("perfect", "perfect_ns", time_text);
  limit_column(t, rows, "pays below", "pays_below", "pays_above", rate_text);
  if (!left_out.contains("to batch"))
    limit_column(t, rows, "to batch", "pays_to_batch", "pays_from_batch",
                 [](double x) { return x == 0 ? "never" : fmt::format("{:.3g}", x); });
  t.column("verdict", text_table::align::left, std::move(verdicts));
  return t;
}

}  // namespace

std::string count_text(uint64_t n, const char* what) { return compare::grouped(n) + ' ' + what + (n == 1 ? "" : "s"); }

std::string time_text(double ns) {
  if (std::isinf(ns)) return "over 31 years";
  return scaled(ns, 1000, {"ns", "µs", "ms", "s"});
}
std::string bytes_text(double bytes) { return scaled(bytes, 1000, {"B", "kB", "MB", "GB", "TB"}); }
std::string rate_text(double rate) {
  if (rate <= 0) return "never";
  if (std::isinf(rate)) return "always";
  return scaled(rate / 1e3, 1000, {"kb/s", "Mb/s", "Gb/s", "Tb/s"});
}

std::string prediction_table(const ordered_json& d, size_t width) {
  const std::vector<size_t> order = by_step(d.at("rows"));
  auto rows = ordered_json::array();
  for (const size_t i : order) rows.push_back(d.at("rows")[i]);
  const ordered_json &model = d.at("model"), &link = d.at("link");
  std::string text =
      fmt::format("{}: {}, {}; forward {}, backward {}, rest {}\n", model.at("name").get<std::string>(),
                  count_text(model.at("tensors").get<size_t>(), "tensor"),
                  count_text(model.at("elements").get<uint64_t>(), "element"), time_text(model.at("forward_ns")),
                  time_text(model.at("backward_ns")), time_text(model.at("rest_ns")));
  text += fmt::format("{} ranks, {} a host, link {} each way ({}), hook {}; costs of {}\n\n",
                      d.at("ranks").get<uint32_t>(), d.at("ranks_per_host").get<uint32_t>(),
                      rate_text(link.at("bits_per_second")), link.at("source").get<std::string>(),
                      d.at("hook").get<std::string>(), d.at("profile").at("machine").get<std::string>());
  std::vector<size_t> numbers;
  for (const size_t i : order) numbers.push_back(i + 1);
  std::set<std::string> left_out;
  text_table t = candidates(rows, numbers, left_out);
  for (const char* const detail : details) {
    if (t.narrowest("  ") + 12 <= width) break;  // 12: room for the longest usual stage in the first column
    left_out.insert(detail);
    t = candidates(rows, numbers, left_out);
  }
  text += t.text("  ", width) + "\n" + d.at("verdict").get<std::string>() + "\n";
  for (const ordered_json& line : d.at("training"))
    text += fmt::format("In trainings, {}: {}.\n", line.at("plan").get<std::string>(),
                        line.at("evidence").get<std::string>());
  for (const ordered_json& what_if : d.at("what_if")) text += what_if_text(what_if);
  for (const ordered_json& row : rows)
    if (row.at("error").is_string())
      text += fmt::format("{}: {}\n", row.at("candidate").get<std::string>(), row.at("error").get<std::string>());
  for (const ordered_json& note : d.at("notes")) text += "note: " + note.get<std::string>() + "\n";
  return compare::plain(compare::without_controls(text, true));
}

std::string prediction_csv(const ordered_json& d) {
  std::string text, line;
  if (d.at("rows").empty()) return text;
  for (const auto& cell : d.at("rows")[0].items()) line += (line.empty() ? "" : ",") + cell.key();
  text += line + "\n";
  for (const ordered_json& row : d.at("rows")) {
    line.clear();
    const char* comma = "";
    for (const auto& cell : row.items()) line += comma + csv_cell(cell.value()), comma = ",";
    text += line + "\n";
  }
  return text;
}

}  // namespace dr::predict
