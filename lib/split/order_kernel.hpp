// Values in another order, for host and device.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// to[j] = from[i], of values of 2 or 4 bytes.
DR_HD inline void copy_value(uint32_t value_size, const void* from, uint64_t i, void* to, uint64_t j) {
  if (value_size == 4)
    static_cast<uint32_t*>(to)[j] = static_cast<const uint32_t*>(from)[i];
  else
    static_cast<uint16_t*>(to)[j] = static_cast<const uint16_t*>(from)[i];
}

// Marks place `to` of n in a bitmap; false if it is not below n, or is marked already. set(word, bit) sets a bit and
// returns the word as it was.
template <class Set>
DR_HD bool mark_place(uint32_t* seen, uint64_t n, uint32_t to, Set&& set) {
  return to < n && (set(seen + to / 32, 1u << (to % 32)) >> (to % 32) & 1) == 0;
}

}  // namespace dr
