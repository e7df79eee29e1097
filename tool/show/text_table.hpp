// Text tables and cells of CSV.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dr::compare {

class text_table {
 public:
  enum class align { left, right };

  // An empty column is not printed.
  void column(std::string heading, align side, std::vector<std::string> cells);
  // widest: maximum width of a line; the first column wraps to fit. 0: any width.
  std::string text(const std::string& indent, size_t widest = 0) const;
  std::string markdown() const;
  // Width of a line if the first column is as narrow as possible.
  size_t narrowest(const std::string& indent) const;

 private:
  struct entry {
    std::string heading;
    align side;
    size_t width;
    std::vector<std::string> cells;
  };
  std::vector<entry> columns;
};

// Lines of at most `width` characters (3 or more), all but the first indented by two. Longer words are split.
std::vector<std::string> wrapped(const std::string& text, size_t width);

// Escapes what Markdown would read as the end of a cell, a tag or code.
std::string markdown_text(const std::string& text);

std::string grouped(uint64_t number);  // 269,722
std::string duration(double ns);       // 12.3 ms; ?: not finite

// A cell of CSV, quoted if necessary; undefined is empty.
std::string csv_cell(const nlohmann::ordered_json& value);

}  // namespace dr::compare
