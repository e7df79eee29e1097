// Counts of elements as texts.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace dr::compare {

// A whole number, also written as 1.5M (k, M and G are powers of 1000) or 1.5e6. Exact.
inline bool read_count(std::string_view text, uint64_t& value) {
  constexpr std::string_view suffixes = "kMG";
  const size_t digits_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits_end), rest = text.substr(digits_end);
  const size_t point = std::min(number.find('.'), number.size());
  std::string digits(number.substr(0, point));
  unsigned zeros = 0;  // to append
  if (rest.starts_with('e')) {
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), zeros);
    if (error != std::errc() || end != rest.data() + rest.size() || zeros > 20) return false;
  } else if (!rest.empty()) {
    const size_t power = suffixes.find(rest[0]);
    if (rest.size() != 1 || power == std::string_view::npos) return false;
    zeros = 3 * (static_cast<unsigned>(power) + 1);
  }
  if (point < number.size()) {
    std::string_view fraction = number.substr(point + 1);
    if (digits.empty() || fraction.empty() || fraction.find('.') != std::string_view::npos) return false;
    while (fraction.ends_with('0')) fraction.remove_suffix(1);
    if (fraction.size() > zeros) return false;
    digits += fraction;
    zeros -= static_cast<unsigned>(fraction.size());
  }
  digits.append(zeros, '0');
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace dr::compare
