// What the AVX-512 twins of encode and decode share: groups of 32 lanes of 16 bits.
#pragma once

#include "codecs/family/golomb/golomb_adaptive.hpp"

namespace dr {

// Of 32 lanes from index i on those below n.
inline uint32_t golomb_valid_lanes(size_t i, size_t n) {
  return i + adaptive_group <= n ? ~0u : static_cast<uint32_t>(low_mask(static_cast<unsigned>(n - i)));
}

// What a group of 32 needs to be divided by a level's divisor.
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

}  // namespace dr
