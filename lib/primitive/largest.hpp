// The largest magnitude of values, as bits: magnitudes are ordered as their bits are. Scalar; vector versions inline
// it.
#pragma once

#include <cstdint>

#include "primitive/cpu.hpp"

namespace dr {

template <class T>
DR_EVERYWHERE typename T::bits largest_magnitude_with(const typename T::bits* values, uint64_t n) {
  typename T::bits largest = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const auto m = static_cast<typename T::bits>(values[i] & T::magnitude_mask);
    largest = m > largest ? m : largest;
  }
  return largest;
}

}  // namespace dr
