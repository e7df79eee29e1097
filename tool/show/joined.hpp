// Lists in sentences.
#pragma once

#include <fmt/core.h>

#include <string>

namespace dr::compare {

// Items with `between` between them: "3, 4, 5".
inline std::string joined(const auto& items, const char* between) {
  std::string text;
  for (const auto& item : items) text += fmt::format("{}{}", text.empty() ? "" : between, item);
  return text;
}

}  // namespace dr::compare
