#include "shown_columns.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "tool/show/console.hpp"

namespace dr::compare {
namespace {

using enum text_table::align;

constexpr double shown_spread = 0.1;  // a smaller one would double the digits of a table and say little
constexpr double rounds_min = 5;      // with less, a spread is not known

std::string decimal(const json_row& row, const char* column, fmt::format_string<double&> form, double factor = 1) {
  const auto value = number_in(row, column);
  if (!value) return {};
  double scaled = *value * factor;
  return fmt::format(form, scaled);
}

// 12.3 µs, and beside a wide spread 12.3 µs±40%
std::string time_cell(const json_row& row, const char* column) {
  const auto ns = number_in(row, column);
  if (!ns) return {};
  const auto spread = number_in(row, (std::string(column) + "_spread").c_str());
  const bool shown = spread && *spread > shown_spread && number_in(row, "rounds").value_or(2) > 1;
  return duration(*ns) + (!shown ? "" : *spread <= 1 ? fmt::format("±{:.0f}%", 100 * *spread) : "±>100%");
}

std::string speed(const json_row& row, const char* column) {
  const auto value = number_in(row, column);
  return value ? speed_text(*value) : std::string();
}

// 8.13+32.00, and the bits of an order.
std::string bits(const json_row& row) {
  std::string text = decimal(row, "index_bits_per_nonzero", "{:.2f}");
  if (text.empty()) return text;
  text += '+' + decimal(row, "value_bits_per_nonzero", "{:.2f}");
  const double order = number_in(row, "order_bytes").value_or(0), r = number_in(row, "r").value_or(0);
  return order > 0 && r > 0 ? text + fmt::format("+{:.2f}", 8 * order / r) : text;
}

// CPU time / wall time of an encode and a decode, where they differ.
std::string cpu(const json_row& row) {
  const auto encode = number_in(row, "encode_cpu_ns"), decode = number_in(row, "decode_cpu_ns");
  const auto time = whole_time(row);
  if (!encode || !decode || !time || time->middle <= 0) return {};
  const double share = (*encode + *decode) / time->middle;
  return std::abs(share - 1) > 0.1 ? fmt::format("{:.1f}x", share) : std::string();
}

std::string in_python(const json_row& row) {
  return shown_text(row, "timed") == "python" ? std::string("in Python") : std::string();
}

std::string step_cell(const json_row& row) {
  const auto ns = number_in(row, "step_ns");
  const std::string verdict = shown_text(row, "verdict");
  if (!ns) return verdict;
  return duration(*ns) + (verdict.empty() ? "" : ' ' + verdict);
}

std::string error_cell(const json_row& row) {
  const auto error = number_in(row, "relative_l2_error");
  return error ? share_text(*error) : std::string();
}

std::string size_cell(const json_row& row) {
  const auto bytes = number_in(row, "bytes");
  return bytes ? size_text(*bytes) : std::string();
}

}  // namespace

std::string shown_text(const json_row& row, const char* column) { return without_controls(text_of(row, column)); }

std::string shown_count(const json_row& row, const char* column) {
  const auto cell = row.find(column);
  return cell != row.end() && cell->is_number_unsigned() ? grouped(cell->get<uint64_t>()) : std::string();
}

std::string share_text(double share) {
  if (share == 0) return "0";
  if (share < 1e-4) return "<0.01 %";
  return share < 0.0995 ? fmt::format("{:.2g} %", 100 * share) : fmt::format("{:.0f} %", 100 * share);
}

std::string smaller_text(const json_row& row) {
  const auto volume = number_in(row, "relative_volume");
  if (!volume || *volume <= 0) return {};
  const double times = 1 / *volume;
  return "×" + (times >= 999.5 ? grouped(static_cast<uint64_t>(times + 0.5)) : fmt::format("{:.3g}", times));
}

std::optional<time_range> whole_time(const json_row& row) {
  time_range all{0, 0, 0};
  for (const std::string part : {"sparsify_ns", "encode_ns", "decode_ns"}) {
    const auto ns = number_in(row, part);
    if (!ns && part == "sparsify_ns") continue;  // rows of Python
    if (!ns) return std::nullopt;
    const double reach = *ns * number_in(row, part + "_spread").value_or(0) / 2;
    all.low += *ns - reach, all.middle += *ns, all.high += *ns + reach;
  }
  return all;
}

std::set<const json_row*> fastest_of(std::span<const json_row* const> rows) {
  const json_row* fastest = nullptr;
  for (const json_row* row : rows)
    if (const auto time = whole_time(*row); time && (!fastest || time->middle < whole_time(*fastest)->middle))
      fastest = row;
  std::set<const json_row*> ties;
  for (const json_row* row : rows) {
    const auto time = whole_time(*row);
    if (time && time->low <= whole_time(*fastest)->high && number_in(*row, "rounds").value_or(0) >= rounds_min)
      ties.insert(row);
  }
  return ties.size() > 1 ? ties : std::set<const json_row*>();
}

std::vector<shown_column> short_columns(const std::set<const json_row*>& ties) {
  return {{"size", right, size_cell},
          {"smaller", right, smaller_text},
          {"coding\nerror", right, error_cell},
          {"encode\n+ decode", right,
           [&ties](const json_row& row) {
             const auto time = whole_time(row);
             return time ? (ties.contains(&row) ? "~" : "") + duration(time->middle) : std::string();
           }},
          {"pays\nbelow", right,
           [](const json_row& row) {
             const bool stepped = number_in(row, "step_ns") || !text_of(row, "verdict").empty();
             return stepped ? std::string() : speed(row, "pays_below_bf16");
           }},
          {"step", left, step_cell},
          {"timed", left, in_python}};
}

std::vector<shown_column> wide_columns() {
  const auto number = [](const char* column, fmt::format_string<double&> form, double factor = 1) {
    return [=](const json_row& row) { return decimal(row, column, form, factor); };
  };
  const auto time = [](const char* column) { return [=](const json_row& row) { return time_cell(row, column); }; };
  const auto of_speed = [](const char* column) { return [=](const json_row& row) { return speed(row, column); }; };
  return {{"bytes", right, [](const json_row& row) { return shown_count(row, "bytes"); }},
          {"smaller", right, smaller_text},
          {"bits", right, bits},
          {"error", right, number("total_error", "{:.3g}")},
          {"coding", right, number("relative_l2_error", "{:.3g}")},
          {"energy", right, number("energy_recall", "{:.1f}%", 100)},
          {"sparsify", right, [](const json_row& row) { return is_memcpy(row) ? "" : time_cell(row, "sparsify_ns"); }},
          {"encode", right, time("encode_ns")},
          {"decode", right, time("decode_ns")},
          {"merge", right, time("merge_ns")},
          {"cpu", right, cpu},
          {"step", right,
           [](const json_row& row) {
             const auto ns = number_in(row, "step_ns");
             return ns ? duration(*ns) : std::string();
           }},
          {"pays below\nf32", right, of_speed("pays_below")},
          {"pays below\nbf16", right, of_speed("pays_below_bf16")},
          {"verdict", left, [](const json_row& row) { return shown_text(row, "verdict"); }},
          {"timed", left, in_python}};
}

}  // namespace dr::compare
