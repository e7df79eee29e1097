// Options that are whole numbers of 64 bits.
#pragma once

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace dr::compare {

// The error of the text, or "". CLI11 reads "" as 0, -1 as the largest number, like strtoull, and accepts
// numbers beyond 64 bits. It checks the digits itself.
inline std::string whole_number(const std::string& text) {
  if (text.starts_with('-')) return "'" + text + "' is negative";
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) == 0)
    return "'" + text + "' is not a whole number";
  errno = 0;
  (void)std::strtoull(text.c_str(), nullptr, 0);
  return errno == ERANGE ? "'" + text + "' is above 18446744073709551615" : std::string();
}

}  // namespace dr::compare
