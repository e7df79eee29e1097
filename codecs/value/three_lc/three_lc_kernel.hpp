// Ternary values, five a byte, runs of zero bytes shortened (3LC, Lim et al. 2019; layout: SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"

namespace dr {

inline constexpr uint32_t three_lc_group = 5;                         // 3^5 = 243 <= 256
inline constexpr uint8_t three_lc_zeros = 121;                        // 1·81 + 1·27 + 1·9 + 1·3 + 1: five zeros
inline constexpr uint8_t three_lc_run = 243;                          // and above: two and more bytes of zeros
inline constexpr uint32_t three_lc_run_max = 2 + 255 - three_lc_run;  // 14

// Writes n digits, digit(i) = 0, 1 or 2 for -1, 0 and 1. Returns the end.
template <class F>
uint8_t* three_lc_pack(uint64_t n, uint8_t* out, F&& digit) {
  uint32_t zeros = 0;  // bytes that wait
  const auto flush = [&] {
    if (zeros) *out++ = static_cast<uint8_t>(zeros == 1 ? three_lc_zeros : three_lc_run + zeros - 2);
    zeros = 0;
  };
  for (uint64_t i = 0; i < n; i += three_lc_group) {
    uint32_t byte = 0;
    if (n - i >= three_lc_group)
      for (uint32_t k = 0; k < three_lc_group; ++k) byte = 3 * byte + digit(i + k);
    else
      for (uint32_t k = 0; k < three_lc_group; ++k) byte = 3 * byte + (i + k < n ? digit(i + k) : 1);
    if (byte == three_lc_zeros) {
      if (++zeros == three_lc_run_max) flush();
    } else {
      flush();
      *out++ = static_cast<uint8_t>(byte);
    }
  }
  flush();
  return out;
}

enum class three_lc_verdict { good, too_short, too_long, padding };

// The opposite: put(i, digit) for n digits.
template <class F>
three_lc_verdict three_lc_unpack(const uint8_t* in, uint64_t size, uint64_t n, F&& put) {
  uint64_t i = 0;
  for (uint64_t at = 0; at < size; ++at) {
    const uint8_t read = in[at];  // read once: the validated value is the one used
    uint64_t repeat = read < three_lc_run ? 1 : read - three_lc_run + uint64_t{2};
    if (repeat > ceil_div(n - i, three_lc_group)) return three_lc_verdict::too_long;
    const uint8_t byte = read < three_lc_run ? read : three_lc_zeros;
    const uint8_t digits[three_lc_group] = {static_cast<uint8_t>(byte / 81), static_cast<uint8_t>(byte / 27 % 3),
                                            static_cast<uint8_t>(byte / 9 % 3), static_cast<uint8_t>(byte / 3 % 3),
                                            static_cast<uint8_t>(byte % 3)};
    for (; repeat > 0; --repeat)
      for (const uint8_t digit : digits)
        if (i < n)
          put(i++, digit);
        else if (digit != 1)
          return three_lc_verdict::padding;
  }
  return i == n ? three_lc_verdict::good : three_lc_verdict::too_short;
}

}  // namespace dr
