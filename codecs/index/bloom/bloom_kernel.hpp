// A Bloom filter over the elements of a universe (Bloom 1970; layout: SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/divisor.hpp"
#include "primitive/hash.hpp"

namespace dr {

enum bloom_policy : uint64_t {
  bloom_leftmost = 0,
  bloom_p0 = 1,
  bloom_middle = 2,
  bloom_rightmost = 3,
  bloom_p1 = 4,
  bloom_p2 = 5
};
enum bloom_layout : uint64_t { bloom_standard = 0, bloom_split_block = 1 };
enum bloom_field : size_t {
  bloom_field_policy,
  bloom_field_k,
  bloom_field_c,
  bloom_field_seed,
  bloom_field_choice,
  bloom_field_layout
};

// On the wire the first two are values of `policy`, which a released reader refuses above 1; the others are `choice` 1
// to 4.
constexpr uint64_t bloom_choice(uint64_t policy) { return policy < bloom_middle ? 0 : policy - 1; }
constexpr uint64_t bloom_policy_of(const uint64_t* fields) {
  return fields[bloom_field_choice] ? fields[bloom_field_choice] + 1 : fields[bloom_field_policy];
}

// Bits of the largest filter over a universe. A bitmap has one bit per element, so more than a few are useless; and the
// work for a filter of a few bytes on the wire (with a bytes codec after it) is bounded by the queried universe.
DR_HD constexpr uint64_t bloom_bits_max(uint64_t universe) { return 16 * universe + 4096; }

// The maximum number of hashes for c: encoders use round(b ln 2) of them, but at least 1, and c = round(65536 b), so at most c
// ln 2 / 65536 + 0.50001. 45427 is 65536 ln 2 rounded up.
constexpr uint64_t bloom_hashes_max(uint64_t c) { return 1 + (c * 45427 >> 32); }

struct bloom_shape {
  divisor bits;  // m, a multiple of 32
  uint32_t hashes, seed;

  DR_HD uint32_t bit(uint32_t element, uint32_t j) const { return bits.remainder(murmur3_32(element, seed + j)); }
  uint32_t size() const { return bits.value / 8; }
};

// m for r indices, or 0 if that is 2^32 or more. r < 2^32 and c < 2^32: no overflow.
DR_HD constexpr uint64_t bloom_bits(uint64_t r, uint64_t c) {
  const uint64_t bits = ceil_div(r * c >> 16, 32) * 32;
  return bits >= uint64_t{1} << 32 ? 0 : bits < 32 ? 32 : bits;
}

// Blocks of 256 bits, in which an element sets one bit per word of 32 (Putze, Sanders, Singler 2007; the constants are
// those of Apache Impala and Parquet).
struct split_block_shape {
  uint32_t blocks, seed;
  static constexpr uint32_t hashes = 8;
  static constexpr uint32_t salt[hashes] = {0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d,
                                            0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31};

  uint32_t hash(uint32_t element) const { return murmur3_32(element, seed); }
  uint32_t block(uint32_t hash) const { return static_cast<uint32_t>(uint64_t{hash} * blocks >> 32); }
  // Hashed once more: elements of a block agree in the high bits of their hash, and so nearly in those of its
  // multiples.
  uint32_t mix(uint32_t hash) const { return murmur3_32(hash, seed); }
  uint32_t bit(uint32_t element, uint32_t j) const {
    const uint32_t h = hash(element);
    return 256 * block(h) + 32 * j + (mix(h) * salt[j] >> 27);
  }
  uint32_t size() const { return 32 * blocks; }
};

// Blocks for r indices, or 0 if they have 2^32 bits or more.
constexpr uint64_t split_blocks(uint64_t r, uint64_t c) {
  const uint64_t blocks = ceil_div(r * c >> 16, 256);
  return blocks >= uint64_t{1} << 24 ? 0 : blocks < 1 ? 1 : blocks;
}

// Policies that choose after the last positive store them, up to this number.
constexpr uint64_t bloom_positives_max(uint64_t universe, uint64_t r) {
  const uint64_t limit = 4 * r + universe / 32 + 4096;
  return limit < universe ? limit : universe;
}

// One element, one bit after the other, as SPEC.md has it: the reference for all faster versions.
template <class Shape>
bool bloom_contains(const Shape& shape, const uint8_t* filter, uint32_t element) {
  for (uint32_t j = 0; j < shape.hashes; ++j) {
    const uint32_t b = shape.bit(element, j);
    if (!(filter[b / 8] >> (b % 8) & 1)) return false;
  }
  return true;
}

}  // namespace dr
