#include "text_table.hpp"

#include <algorithm>

namespace dr::compare {
namespace {

// Code points: all that we print takes one place each.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// In `width` places; what does not fit loses its middle. (Plans, the only long cells, are ASCII, and tell apart by
// either end.)
std::string fitted(const std::string& text, size_t width, bool left) {
  const size_t own = width_of(text);
  const size_t head = (width - 1) * 3 / 5;
  if (own > width) return text.substr(0, head) + "…" + text.substr(own - (width - 1 - head));
  const std::string fill(width - own, ' ');
  return left ? text + fill : fill + text;
}

}  // namespace

void text_table::column(std::string heading, align side, std::vector<std::string> cells) {
  const bool empty = std::all_of(cells.begin(), cells.end(), [](const std::string& c) { return c.empty(); });
  if (empty) return;
  size_t width = width_of(heading);
  for (const std::string& cell : cells) width = std::max(width, width_of(cell));
  columns.push_back({std::move(heading), side, width, std::move(cells)});
}

std::string text_table::text(const std::string& indent, size_t widest) const {
  if (columns.empty()) return {};
  size_t total = indent.size() - 2, first = columns.front().width;
  for (const entry& c : columns) total += c.width + 2;
  if (widest != 0 && total > widest) first -= std::min(total - widest, first - width_of(columns.front().heading) - 1);
  std::string all;
  for (size_t i = 0; i <= columns.front().cells.size(); ++i) {
    std::string line = indent;
    for (const entry& c : columns) {
      const bool leads = &c == &columns.front();
      line += leads ? "" : "  ";
      line += fitted(i == 0 ? c.heading : c.cells[i - 1], leads ? first : c.width, c.side == align::left);
    }
    all += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return all;
}

std::string grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

}  // namespace dr::compare
