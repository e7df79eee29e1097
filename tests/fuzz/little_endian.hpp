// Numbers as files and frames have them, for oracles that share nothing with the library.
#pragma once

#include <cstdint>

namespace little_endian {

inline uint64_t number(const uint8_t* at, uint64_t bytes) {
  uint64_t x = 0;
  for (uint64_t i = 0; i < bytes; ++i) x |= uint64_t{at[i]} << 8 * i;
  return x;
}

inline void put(uint8_t* at, uint64_t x, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(x >> 8 * i);
}

}  // namespace little_endian
