// A Bloom filter over the elements of a universe (Bloom 1970; layout: SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/divisor.hpp"
#include "primitive/hash.hpp"

namespace dr {

enum bloom_policy : uint64_t { bloom_leftmost = 0, bloom_p0 = 1 };
enum bloom_field : size_t { bloom_field_policy, bloom_field_k, bloom_field_c, bloom_field_seed };

struct bloom_shape {
  divisor bits;  // m, a multiple of 32
  uint32_t hashes, seed;

  DR_HD uint32_t bit(uint32_t element, uint32_t j) const { return bits.remainder(murmur3_32(element, seed + j)); }
};

// m for r indices, or 0 if that is 2^32 or more. r < 2^32 and c < 2^32: no overflow.
DR_HD constexpr uint64_t bloom_bits(uint64_t r, uint64_t c) {
  const uint64_t bits = ceil_div(r * c >> 16, 32) * 32;
  return bits >= uint64_t{1} << 32 ? 0 : bits < 32 ? 32 : bits;
}

inline void bloom_insert(const bloom_shape& shape, uint8_t* filter, uint32_t element) {
  for (uint32_t j = 0; j < shape.hashes; ++j) {
    const uint32_t b = shape.bit(element, j);
    filter[b / 8] |= static_cast<uint8_t>(1u << (b % 8));
  }
}

inline bool bloom_contains(const bloom_shape& shape, const uint8_t* filter, uint32_t element) {
  for (uint32_t j = 0; j < shape.hashes; ++j) {
    const uint32_t b = shape.bit(element, j);
    if (!(filter[b / 8] >> (b % 8) & 1)) return false;
  }
  return true;
}

// Positives in ascending order into `out`, which has room for `capacity`; stops after `wanted`. Returns how many there
// are, but at most capacity + 1 (which says: too many).
inline uint64_t bloom_positives(const bloom_shape& shape, const uint8_t* filter, uint64_t universe, uint64_t wanted,
                                uint32_t* out, uint64_t capacity) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < universe && found < wanted; ++i) {
    if (!bloom_contains(shape, filter, static_cast<uint32_t>(i))) continue;
    if (found == capacity) return capacity + 1;
    out[found++] = static_cast<uint32_t>(i);
  }
  return found;
}

}  // namespace dr
