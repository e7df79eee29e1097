// Text in ASCII, for a locale without other letters.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace dr::compare {

// Whether the first of LC_ALL, LC_CTYPE and LANG that is set names C, POSIX or another character set than UTF-8. If none is set,
// as in many containers, the terminal decides, and all have UTF-8.
inline bool locale_is_ascii() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    const std::string_view locale = value;
    if (locale == "C" || locale == "POSIX") return true;
    const size_t dot = locale.find('.');
    const std::string_view letters = dot == locale.npos ? "utf8" : locale.substr(dot + 1);
    return !(letters.starts_with("UTF-8") || letters.starts_with("utf-8") || letters.starts_with("UTF8") ||
             letters.starts_with("utf8"));
  }
  return false;
}

// Set once, by main; tests of tables see UTF-8 in any locale.
inline bool ascii_only = false;

// Without the letters beyond ASCII that this program writes. Before a table is laid out, since some become two.
inline std::string plain(std::string text) {
  if (!ascii_only) return text;
  constexpr std::pair<std::string_view, std::string_view> letters[] = {
      {"×", "x"}, {"µ", "u"}, {"±", "+-"}, {"…", "..."}, {"→", "->"}, {"²", "^2"}, {"–", "-"}};
  for (const auto& [from, to] : letters)
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

}  // namespace dr::compare
