// Words of 1, 2, 4 or 8 bytes, by their size.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// Calls f with a word of so many bytes.
template <class F>
constexpr decltype(auto) with_word(uint64_t size, F&& f) {
  if (size == 8) return f(uint64_t{});
  if (size == 4) return f(uint32_t{});
  if (size == 2) return f(uint16_t{});
  return f(uint8_t{});
}

// A type of words: numbers with sign and magnitude (f64, f32, bf16, f16, fp8), or in two's complement.
template <class Bits, bool has_sign>
struct word_type {
  using bits = Bits;
  static constexpr Bits top = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

  // A word as two's complement in the order of its numbers, so that neighbours differ by 1; it is its own inverse.
  DR_HD static constexpr Bits ordered(Bits b) {
    // (Without a branch, for vectors.)
    const auto sign = static_cast<Bits>(Bits{0} - static_cast<Bits>(b >> (8 * sizeof(Bits) - 1)));
    return has_sign ? static_cast<Bits>(b ^ (sign & static_cast<Bits>(top - 1))) : b;
  }
};

// Calls f with the type of words of a dtype: numbers of floating-point types and of 8 bits (fp8) have a sign and a magnitude.
template <class F>
constexpr decltype(auto) with_word_type(uint32_t dtype, F&& f) {
  return with_word(value_size(dtype), [&](auto bits) {
    using Bits = decltype(bits);
    return dtype == DR_U16 || dtype == DR_U32 ? f(word_type<Bits, false>{}) : f(word_type<Bits, true>{});
  });
}

}  // namespace dr
