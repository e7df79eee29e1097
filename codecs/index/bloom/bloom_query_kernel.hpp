// The inner loops of index=bloom, for every instruction set: elements to bits of a filter, and a filter asked for
// many elements. Only the time depends on the level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/index/bloom/bloom_kernel.hpp"
#include "primitive/cpu.hpp"

namespace dr {

inline constexpr uint32_t bloom_part = 4096;  // maximum number of elements per query: they stay in the L1 cache
inline constexpr uint32_t bloom_slack = 16;   // elements that a query may write past its last

// Bits j of `n` elements. `bits` has room for n + bloom_slack.
template <class Shape>
void bloom_bits_scalar(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits) {
  for (uint32_t i = 0; i < n; ++i) bits[i] = shape.bit(elements[i], j);
}
template <class Shape>
void bloom_bits_avx2(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits);
template <class Shape>
void bloom_bits_avx512(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits);
template <class Shape>
inline constexpr cpu_table<decltype(&bloom_bits_scalar<Shape>)> bloom_bits_at{
    bloom_bits_scalar<Shape>, on_x86(bloom_bits_avx2<Shape>), on_x86(bloom_bits_avx512<Shape>)};

// Positives of [first, first + n), n <= bloom_part, ascending. Returns how many; `found` has room for n + bloom_slack.
uint32_t bloom_ask_scalar(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found);
uint32_t bloom_ask_avx2(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found);
uint32_t bloom_ask_avx512(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found);
uint32_t bloom_ask_split_scalar(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                                uint32_t* found);
uint32_t bloom_ask_split_avx2(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                              uint32_t* found);
uint32_t bloom_ask_split_avx512(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                                uint32_t* found);
inline constexpr cpu_table<decltype(&bloom_ask_scalar)> bloom_standard_ask{bloom_ask_scalar, on_x86(bloom_ask_avx2),
                                                                           on_x86(bloom_ask_avx512)};
inline constexpr cpu_table<decltype(&bloom_ask_split_scalar)> bloom_split_ask{
    bloom_ask_split_scalar, on_x86(bloom_ask_split_avx2), on_x86(bloom_ask_split_avx512)};
constexpr const auto& bloom_ask_table(const bloom_shape&) { return bloom_standard_ask; }
constexpr const auto& bloom_ask_table(const split_block_shape&) { return bloom_split_ask; }

// Calls f(bits, first, n) with bits j of elements first to first + n, for all j of some elements before the next ones.
template <class Shape, class F>
void bloom_each_bits(const Shape& shape, cpu_level level, const uint32_t* elements, uint64_t count, F&& f) {
  constexpr uint32_t chunk = 512;
  uint32_t bits[chunk + bloom_slack];
  const auto bits_of = bloom_bits_at<Shape>.at(level);
  for (uint64_t first = 0; first < count; first += chunk) {
    const auto n = static_cast<uint32_t>(count - first < chunk ? count - first : chunk);
    for (uint32_t j = 0; j < shape.hashes; ++j) {
      bits_of(shape, elements + first, n, j, bits);
      f(static_cast<const uint32_t*>(bits), first, n);
    }
  }
}

// Sets the bits of `count` elements.
void bloom_insert_split_scalar(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements,
                               uint64_t count);
void bloom_insert_split_avx2(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements, uint64_t count);
inline constexpr cpu_table<decltype(&bloom_insert_split_scalar)> bloom_split_insert{bloom_insert_split_scalar,
                                                                                    on_x86(bloom_insert_split_avx2)};

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
