// What index=bloom spends its time in, at every level of instructions: elements to bits of a filter, and a filter asked for
// many elements. None of it depends on the level but in time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/index/bloom/bloom_kernel.hpp"
#include "primitive/cpu.hpp"

namespace dr {

inline constexpr uint32_t bloom_part =
    4096;  // elements asked for in a call, at most: their numbers stay in the first cache
inline constexpr uint32_t bloom_slack = 16;  // and elements that a call may write behind its last

// Bits j of `n` elements. `bits` has room for n + bloom_slack.
template <class Shape>
using bloom_bits_of = void (*)(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits);
extern const cpu_table<bloom_bits_of<bloom_shape>> bloom_standard_bits;
extern const cpu_table<bloom_bits_of<split_block_shape>> bloom_split_bits;

// Positives of [first, first + n), n <= bloom_part, ascending. Returns how many; `found` has room for n + bloom_slack.
template <class Shape>
using bloom_ask = uint32_t (*)(const Shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found);
extern const cpu_table<bloom_ask<bloom_shape>> bloom_standard_ask;
extern const cpu_table<bloom_ask<split_block_shape>> bloom_split_ask;

inline const cpu_table<bloom_bits_of<bloom_shape>>& bloom_bits_table(const bloom_shape&) { return bloom_standard_bits; }
inline const cpu_table<bloom_bits_of<split_block_shape>>& bloom_bits_table(const split_block_shape&) {
  return bloom_split_bits;
}
inline const cpu_table<bloom_ask<bloom_shape>>& bloom_ask_table(const bloom_shape&) { return bloom_standard_ask; }
inline const cpu_table<bloom_ask<split_block_shape>>& bloom_ask_table(const split_block_shape&) {
  return bloom_split_ask;
}

// Calls f(bits, first, n) with bits j of elements first to first + n, for all j of some elements before the next ones.
template <class Shape, class F>
void bloom_each_bits(const Shape& shape, cpu_level level, const uint32_t* elements, uint64_t count, F&& f) {
  constexpr uint32_t chunk = 512;
  uint32_t bits[chunk + bloom_slack];
  const auto bits_of = bloom_bits_table(shape).at(level);
  for (uint64_t first = 0; first < count; first += chunk) {
    const auto n = static_cast<uint32_t>(count - first < chunk ? count - first : chunk);
    for (uint32_t j = 0; j < shape.hashes; ++j) {
      bits_of(shape, elements + first, n, j, bits);
      f(static_cast<const uint32_t*>(bits), first, n);
    }
  }
}

// Sets the bits of `count` elements.
using split_insert = void (*)(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements,
                              uint64_t count);
extern const cpu_table<split_insert> bloom_split_insert;

inline void bloom_insert(const split_block_shape& shape, cpu_level level, uint8_t* filter, const uint32_t* elements,
                         uint64_t count) {
  bloom_split_insert.at(level)(shape, filter, elements, count);
}
inline void bloom_insert(const bloom_shape& shape, cpu_level level, uint8_t* filter, const uint32_t* elements,
                         uint64_t count) {
  bloom_each_bits(shape, level, elements, count, [&](const uint32_t* bits, uint64_t, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) filter[bits[i] / 8] |= static_cast<uint8_t>(1u << (bits[i] % 8));
  });
}

}  // namespace dr
