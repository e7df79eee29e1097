// Words of 1, 2, 4 or 8 bytes, by their size.
#pragma once

#include <cstdint>

namespace dr {

// Calls f with a word of so many bytes.
template <class F>
constexpr decltype(auto) with_word(uint64_t size, F&& f) {
  if (size == 8) return f(uint64_t{});
  if (size == 4) return f(uint32_t{});
  if (size == 2) return f(uint16_t{});
  return f(uint8_t{});
}

}  // namespace dr
