// The format of a result.
#pragma once

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <string_view>

namespace dr::compare {

// "csv" of "rows.CSV"; "" without a suffix.
inline std::string suffix_of(const std::string& path) {
  const size_t dot = path.rfind('.'), slash = path.rfind('/');
  std::string suffix = dot == path.npos || (slash != path.npos && dot < slash) ? "" : path.substr(dot + 1);
  std::ranges::transform(suffix, suffix.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return suffix;
}

// The name that --format has, else the output's suffix if it is one of `known`, else "".
inline std::string format_name(const std::string& option, const std::string& output,
                               std::span<const std::string_view> known) {
  const std::string suffix = suffix_of(output);
  return !option.empty() ? option : std::ranges::find(known, suffix) == known.end() ? std::string() : suffix;
}

// Why a file must not get the format: its name has another one. "": it may.
inline std::string format_clash(const std::string& option, const std::string& output,
                                std::span<const std::string_view> known) {
  const std::string suffix = suffix_of(output);
  const bool clash = !option.empty() && suffix != option && std::ranges::find(known, suffix) != known.end();
  return clash ? "--output " + output + ": the name says " + suffix + ", --format says " + option : std::string();
}

}  // namespace dr::compare
