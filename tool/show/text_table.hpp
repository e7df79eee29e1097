// Text tables and cells of CSV.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "text_width.hpp"

namespace dr::compare {

class text_table {
 public:
  enum class align { left, right };

  // An empty column is not printed. A heading may have several lines; a first cell may begin with spaces, its indentation.
  void column(std::string heading, align side, std::vector<std::string> cells);
  // Lines before a row, each with its '\n'; as wide as they are.
  void before(size_t row, const std::string& lines);
  // Begins each line of the row with `bold_mark`.
  void bold(size_t row) { bold_.insert(row); }
  // widest: maximum width of a line; the first column wraps to fit. 0: any width.
  std::string text(const std::string& indent, size_t widest = 0) const;
  std::string markdown() const;
  // Width of a line if no cell wraps, and if the first column is as narrow as possible.
  size_t natural(const std::string& indent) const;
  size_t narrowest(const std::string& indent) const;

 private:
  struct entry {
    std::vector<std::string> heading;
    align side;
    size_t width;
    std::vector<std::string> cells;
  };
  std::vector<entry> columns;
  std::map<size_t, std::string> before_;
  std::set<size_t> bold_;
};

inline constexpr char bold_mark = '\x02';

// Lines of at most `width` characters (3 or more), all but the first indented by two. They break at spaces; a word that is longer than a
// line breaks after , ( + . or /, and only without any of these elsewhere.
std::vector<std::string> wrapped(const std::string& text, size_t width);

// Escapes what Markdown would read as the end of a cell, a tag or code.
std::string markdown_text(const std::string& text);

std::string grouped(uint64_t number);  // 269,722
std::string duration(double ns);       // 12.3 ms; ?: not finite
std::string size_text(double bytes);   // 88.6 kB
std::string speed_text(double bits);   // 25.7 Gb/s; never: 0

// A cell of CSV, quoted if necessary; undefined is empty.
std::string csv_cell(const nlohmann::ordered_json& value);

}  // namespace dr::compare
