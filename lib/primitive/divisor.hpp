// Division by a number that is known in advance: one multiplication (Barrett 1987) and one correction.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

// With R = floor((2^32 - 1) / d), 2^32 / d - R <= 1; so for x < 2^32, x / d - x R / 2^32 < 1, and the product's high
// word is the quotient or one less.
struct divisor {
  uint32_t value, reciprocal;

  DR_HD static constexpr divisor of(uint32_t value) { return {value, 0xffffffffu / value}; }

  DR_HD constexpr uint32_t quotient(uint32_t x) const {
    const uint32_t q = near(x);
    return q + (x - q * value >= value);
  }
  DR_HD constexpr uint32_t remainder(uint32_t x) const {
    const uint32_t rest = x - near(x) * value;
    return rest >= value ? rest - value : rest;
  }

 private:
  DR_HD constexpr uint32_t near(uint32_t x) const { return static_cast<uint32_t>(uint64_t{x} * reciprocal >> 32); }
};

}  // namespace dr
