#include "text_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "plain_text.hpp"

namespace dr::compare {
namespace {

constexpr size_t least_width = 22;  // of a first column with wrapped cells

// In `width` places.
std::string padded(const std::string& text, size_t width, bool left) {
  const std::string fill(width - std::min(width, width_of(text)), ' ');
  return left ? text + fill : fill + text;
}

size_t cut_of(const std::string& word, size_t width) {
  size_t at = word.find_last_of(",(+./", width - 1);
  at = at == std::string::npos || at == 0 ? width : at + 1;
  while (at > 1 && (word[at] & 0xc0) == 0x80) --at;  // not within a code point
  return at;
}

}  // namespace

std::vector<std::string> wrapped(const std::string& any_text, size_t width) {
  const std::string text = plain(any_text);
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
  heading = plain(std::move(heading));
  for (std::string& cell : cells) cell = plain(std::move(cell));
  const bool empty = std::all_of(cells.begin(), cells.end(), [](const std::string& c) { return c.empty(); });
  if (empty) return;
  entry made{{}, side, 0, std::move(cells)};
  for (size_t begin = 0; begin <= heading.size();) {
    const size_t end = std::min(heading.find('\n', begin), heading.size());
    made.heading.push_back(heading.substr(begin, end - begin));
    made.width = std::max(made.width, width_of(made.heading.back()));
    begin = end + 1;
  }
  for (const std::string& cell : made.cells) made.width = std::max(made.width, width_of(cell));
  columns.push_back(std::move(made));
}

void text_table::before(size_t row, const std::string& lines) { before_[row] += plain(lines); }

size_t text_table::natural(const std::string& indent) const {
  size_t total = indent.size() - 2;
  for (const entry& c : columns) total += 2 + c.width;
  return total;
}

size_t text_table::narrowest(const std::string& indent) const {
  if (columns.empty()) return 0;
  const size_t first = columns.front().width;
  return natural(indent) - first + std::min(first, least_width);
}

std::string text_table::text(const std::string& indent, size_t widest) const {
  if (columns.empty()) return {};
  size_t first = columns.front().width;
  if (widest != 0 && natural(indent) > widest) {
    const size_t others = natural(indent) - first;
    first = std::max(std::min(first, least_width), widest - std::min(widest, others));
  }
  std::string all;
  const auto put = [&](const std::string& lead, bool bold, auto&& cell) {
    std::string line = indent + padded(lead, first, columns.front().side == align::left);
    for (size_t c = 1; c < columns.size(); ++c)
      line += "  " + padded(cell(columns[c]), columns[c].width, columns[c].side == align::left);
    all += (bold ? std::string(1, bold_mark) : "") + line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  size_t heading_lines = 1;
  for (const entry& c : columns) heading_lines = std::max(heading_lines, c.heading.size());
  for (size_t k = 0; k < heading_lines; ++k) {  // (they end in one line)
    const auto heading = [&](const entry& c) {
      const size_t above = heading_lines - c.heading.size();
      return k < above ? std::string() : c.heading[k - above];
    };
    put(heading(columns.front()), false, heading);
  }
  for (size_t i = 0; i < columns.front().cells.size(); ++i) {
    if (const auto lines = before_.find(i); lines != before_.end()) all += lines->second;
    const std::string& text = columns.front().cells[i];
    const size_t margin = std::min(text.find_first_not_of(' '), text.size());
    bool begun = false;
    for (const std::string& lead : wrapped(text.substr(margin), first - std::min(margin, first - 3))) {
      put(text.substr(0, margin) + lead, bold_.contains(i), [&](const entry& c) { return begun ? "" : c.cells[i]; });
      begun = true;
    }
  }
  return all;
}

std::string text_table::markdown() const {
  if (columns.empty()) return {};
  std::string head, rule;
  std::vector<std::string> lines(columns.front().cells.size());
  for (const entry& c : columns) {
    std::string heading;
    for (const std::string& line : c.heading) heading += (heading.empty() ? "" : " ") + line;
    head += "| " + heading + ' ';
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

std::string size_text(double bytes) {
  if (bytes < 999.5) return fmt::format("{:.0f} B", bytes);
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (bytes /= 1000; unit < 3 && bytes >= 999.5; ++unit) bytes /= 1000;
  return fmt::format("{:.3g} {}", bytes, units[unit]);
}

std::string speed_text(double bits) {
  if (!std::isfinite(bits)) return "?";
  if (bits <= 0) return "never";
  const bool giga = bits >= 999.5e6;
  return fmt::format("{:.3g} {}b/s", bits / (giga ? 1e9 : 1e6), giga ? 'G' : 'M');
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
