// The width of a text on a terminal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace dr::compare {

// In places: counts code points, as all printed characters have width 1.
inline size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace dr::compare
