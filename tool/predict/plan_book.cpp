#include "plan_book.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace dr::predict {

book read_book(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) throw std::runtime_error(path + ": is a directory, not a plan book");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    return book(text, path);
  } catch (const error& e) {
    throw std::runtime_error(e.detail.message);
  }
}

std::string plan_in(const book& b, const std::string& name) {
  const dr_book_line line = b.match(name);
  return line.plan ? dr_plan_text(line.plan) : "";
}

std::vector<std::string> idle_lines(const book& b, const std::string& where, const std::vector<std::string>& tensors) {
  std::vector<std::string> idle;
  if (b.size() == 0) idle.push_back(where + ": no line; all tensors are dense");
  const std::vector<uint32_t> uses = b.uses(tensors);
  for (size_t i = 0; i < uses.size(); ++i) {
    const dr_book_line line = b[i];
    const bool unreached = uses[i] == DR_LINE_UNREACHED;
    if (uses[i] == DR_LINE_USED || (unreached && std::string_view(line.pattern) == "*"))
      continue;  // a book may end with `*`, for unknown names
    idle.push_back(
        fmt::format("{} line {}: pattern '{}' {}", where, line.number, line.pattern,
                    unreached ? "is never reached: lines before it match its tensors" : "matches no tensor"));
  }
  return idle;
}

}  // namespace dr::predict
