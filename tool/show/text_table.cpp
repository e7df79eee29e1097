#include "text_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace dr::compare {
namespace {

constexpr size_t least_width = 16;  // of a first column with wrapped cells

// Counts code points: all printed characters have width 1.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// In `width` places.
std::string padded(const std::string& text, size_t width, bool left) {
  const std::string fill(width - std::min(width, width_of(text)), ' ');
  return left ? text + fill : fill + text;
}

// Where to split a word that is longer than a line: after a comma, a bracket or a plus, else anywhere.
size_t cut_of(const std::string& word, size_t width) {
  size_t at = word.find_last_of(",(+", width - 1);
  at = at == std::string::npos || at == 0 ? width : at + 1;
  while (at > 1 && (word[at] & 0xc0) == 0x80) --at;  // not within a code point
  return at;
}

}  // namespace

std::vector<std::string> wrapped(const std::string& text, size_t width) {
  if (width_of(text) <= width) return {text};
  const std::string margin = "  ";
  std::vector<std::string> lines(1);
  size_t used = 0;
  const auto put = [&](const std::string& word) {
    const bool first = used == 0;
    if (!first && used + 1 + width_of(word) > width) {
      lines.push_back(margin);
      used = margin.size();
    } else if (!first) {
      lines.back() += ' ';
      ++used;
    }
    lines.back() += word;
    used += width_of(word);
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    while (width_of(word) > width - margin.size()) {
      const size_t cut = cut_of(word, width - margin.size());
      put(word.substr(0, cut));
      word.erase(0, cut);
    }
    if (!word.empty()) put(word);
    begin = end + 1;
  }
  return lines;
}

void text_table::column(std::string heading, align side, std::vector<std::string> cells) {
  const bool empty = std::all_of(cells.begin(), cells.end(), [](const std::string& c) { return c.empty(); });
  if (empty) return;
  size_t width = width_of(heading);
  for (const std::string& cell : cells) width = std::max(width, width_of(cell));
  columns.push_back({std::move(heading), side, width, std::move(cells)});
}

size_t text_table::narrowest(const std::string& indent) const {
  size_t total = indent.size() - 2;
  for (const entry& c : columns) total += 2 + (&c == &columns.front() ? std::min(c.width, least_width) : c.width);
  return total;
}

std::string text_table::text(const std::string& indent, size_t widest) const {
  if (columns.empty()) return {};
  size_t first = columns.front().width;
  const size_t others = narrowest(indent) - std::min(first, least_width);
  if (widest != 0 && others + first > widest)
    first = std::max(std::min(first, least_width), widest - std::min(widest, others));
  std::string all;
  for (size_t i = 0; i <= columns.front().cells.size(); ++i) {
    const auto cell = [&](const entry& c) -> const std::string& { return i == 0 ? c.heading : c.cells[i - 1]; };
    const std::vector<std::string> leads = wrapped(cell(columns.front()), first);
    for (size_t k = 0; k < leads.size(); ++k) {
      std::string line = indent + padded(leads[k], first, columns.front().side == align::left);
      for (size_t c = 1; k == 0 && c < columns.size(); ++c)
        line += "  " + padded(cell(columns[c]), columns[c].width, columns[c].side == align::left);
      all += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
  }
  return all;
}

std::string text_table::markdown() const {
  if (columns.empty()) return {};
  std::string head, rule;
  std::vector<std::string> lines(columns.front().cells.size());
  for (const entry& c : columns) {
    head += "| " + c.heading + ' ';
    rule += c.side == align::left ? "|---" : "|--:";
    for (size_t i = 0; i < lines.size(); ++i) lines[i] += "| " + markdown_text(c.cells[i]) + ' ';
  }
  std::string all = head + "|\n" + rule + "|\n";
  for (const std::string& line : lines) all += line + "|\n";
  return all;
}

std::string markdown_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '`') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string duration(double ns) {
  if (!std::isfinite(ns)) return "?";
  const char* const units[] = {"ns", "µs", "ms", "s"};
  size_t unit = 0;
  while (unit < 3 && ns >= 999.5) ns /= 1000, ++unit;
  return fmt::format("{:.3g} {}", ns, units[unit]);
}

std::string csv_cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace dr::compare
