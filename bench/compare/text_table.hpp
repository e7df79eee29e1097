// Columns of text, as wide as they have to be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dr::compare {

class text_table {
 public:
  enum class align { left, right };

  // A column with nothing in it is not printed.
  void column(std::string heading, align side, std::vector<std::string> cells);
  // widest: what a line may take; where it would be more the first column is cut. 0: any width.
  std::string text(const std::string& indent, size_t widest = 0) const;

 private:
  struct entry {
    std::string heading;
    align side;
    size_t width;
    std::vector<std::string> cells;
  };
  std::vector<entry> columns;
};

std::string grouped(uint64_t number);  // 269,722

}  // namespace dr::compare
