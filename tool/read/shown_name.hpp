// Names of tensors as rows, tables and errors show them (printable() of inputs.hpp), and as files and plan books have them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dr::compare {

// The name that printable() shows so. A text that it never makes is a name itself.
inline std::string name_shown_as(std::string_view shown) {
  const auto name = nlohmann::json::parse('"' + std::string(shown) + '"', nullptr, false);
  return name.is_string() ? name.get<std::string>() : std::string(shown);
}

}  // namespace dr::compare
