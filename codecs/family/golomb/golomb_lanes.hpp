// Shared by the twins: groups of 32 lanes of 16 bits.
#pragma once

#include "codecs/family/golomb/golomb_adaptive.hpp"

namespace dr {

// Of 32 lanes from index i on those below n.
inline uint32_t golomb_valid_lanes(size_t i, size_t n) {
  return i + adaptive_group <= n ? ~0u : static_cast<uint32_t>(low_mask(static_cast<unsigned>(n - i)));
}

// Constants to divide a group of 32 by the divisor of its code.
struct golomb_level_lanes {
  uint16_t divisor[16], inverse[16], short_low[16];
  constexpr golomb_level_lanes() : divisor{}, inverse{}, short_low{} {
    for (unsigned level = 0; level < 16; ++level) {
      const golomb_code& code = golomb_levels.of[level];
      divisor[level] = static_cast<uint16_t>(code.divisor);
      inverse[level] = static_cast<uint16_t>(level ? 65536 / code.divisor : 0);
      // Of the divisor 1 no remainder has an extra bit.
      short_low[level] = static_cast<uint16_t>(level ? code.short_low : 1);
    }
  }
};
inline constexpr golomb_level_lanes golomb_lanes_of;

// A group whose gaps are not all narrow is scalar's: q would not fit a lane.
struct golomb_wide_group {
  uint32_t of[adaptive_group];
  size_t size;

  golomb_wide_group(const uint32_t* x, size_t i, size_t n, uint64_t base)
      : size(n - i < adaptive_group ? n - i : adaptive_group) {
    for (size_t j = 0; j < size; ++j) of[j] = x[i + j] - (i + j ? x[i + j - 1] + 1 : static_cast<uint32_t>(base));
  }
  bool is_wide() const {
    uint32_t any = 0;
    for (size_t j = 0; j < size; ++j) any |= of[j];
    return any >= 0x8000;
  }
  // Returns the end of v.
  uint8_t* put(const golomb_code& code, uint8_t* low, bit_appender& unaries, bit_appender& extras) const {
    bit_writer lows(low);
    for (size_t j = 0; j < size; ++j) {
      const uint64_t q = code.quotient(of[j]), r = of[j] - q * code.divisor;
      const bool longer = code.divisor > 1 && r >= code.short_low;
      lows.put(longer ? (r + code.short_low) >> 1 : r, code.low_bits);
      unaries.put_unary(q);
      extras.put(longer ? (r + code.short_low) & 1 : 0, longer);
    }
    return lows.finish();
  }
};

}  // namespace dr
