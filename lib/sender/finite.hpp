// Whether all values of an array are finite: compares the largest magnitude; the bits of magnitudes are in order.
#pragma once

#include <algorithm>

#include "primitive/value_type.hpp"

namespace dr {

inline bool are_all_finite(uint32_t dtype, const void* values, uint64_t n) {
  return with_type(dtype, [&](auto type) {
    using type_of = decltype(type);
    using bits = typename type_of::bits;
    const auto* const from = static_cast<const bits*>(values);
    bits largest = 0;
    for (uint64_t i = 0; i < n; ++i)
      largest = std::max<bits>(largest, static_cast<bits>(from[i] & type_of::magnitude_mask));
    return largest < type_of::infinity;
  });
}

}  // namespace dr
