// Columns of text, as wide as they have to be; cells of CSV.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dr::compare {

class text_table {
 public:
  enum class align { left, right };

  // A column with nothing in it is not printed.
  void column(std::string heading, align side, std::vector<std::string> cells);
  // widest: places of a line, at most; where there would be more the first column takes several lines. 0: any width.
  std::string text(const std::string& indent, size_t widest = 0) const;
  std::string markdown() const;
  // Places of a line, with a first column that is as narrow as it gets.
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

// Lines of at most `width` places (3 or more), all but the first indented by two. Words that are too long are cut.
std::vector<std::string> wrapped(const std::string& text, size_t width);

// Text that no renderer of Markdown takes for a cell's end, a tag or code.
std::string markdown_text(const std::string& text);

std::string grouped(uint64_t number);  // 269,722
std::string duration(double ns);       // 12.3 ms; ?: not finite

// A cell of CSV, quoted where it must be; undefined is empty.
std::string csv_cell(const nlohmann::ordered_json& value);

}  // namespace dr::compare
