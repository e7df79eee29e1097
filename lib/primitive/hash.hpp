// MurmurHash3_x86_32 (Austin Appleby, public domain description) of a 4-byte key.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

DR_HD constexpr uint32_t murmur3_32(uint32_t key, uint32_t seed) {
  uint32_t k = std::rotl(key * 0xcc9e2d51u, 15) * 0x1b873593u;
  uint32_t h = std::rotl(seed ^ k, 13) * 5 + 0xe6546b64u;
  h ^= 4;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

}  // namespace dr
