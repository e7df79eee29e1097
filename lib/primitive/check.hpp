// The frame's check: integer and free of order, so any number of threads or blocks computes it in one pass (FORMAT.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/rng.hpp"

namespace dr {

inline constexpr size_t check_chunk_words = 1024;

// T[i]. A GPU computes it anew: cheaper there than a table.
DR_HD constexpr uint32_t check_factor(uint32_t i) { return static_cast<uint32_t>(mix64((i + 1) * golden) >> 32) | 1; }

inline constexpr auto check_table = [] {
  std::array<uint32_t, check_chunk_words> table{};
  for (uint32_t i = 0; i < table.size(); ++i) table[i] = check_factor(i);
  return table;
}();

// The term of chunk c, whose first `words` words begin at `from`.
inline uint64_t check_term(const uint8_t* from, size_t words, uint64_t c) {
  uint64_t sum = 0;
  // (w + 1) · T, as a product of 32 bits that compilers turn into vectors.
  for (size_t i = 0; i < words; ++i) sum += uint64_t{load<uint32_t>(from + 4 * i)} * check_table[i] + check_table[i];
  return mix64(sum + c * golden);
}

// Of `size` bytes, a multiple of 4.
inline uint64_t check(const uint8_t* from, size_t size) {
  uint64_t total = 0;
  const size_t words = size / 4;
  for (size_t i = 0; i < words; i += check_chunk_words)
    total +=
        check_term(from + 4 * i, words - i < check_chunk_words ? words - i : check_chunk_words, i / check_chunk_words);
  return total;
}

// The same, with the 8 bytes at `hole` (within the first chunk, a multiple of 4) read as 0.
inline uint64_t check_with_hole(const uint8_t* from, size_t size, size_t hole) {
  uint8_t first[4 * check_chunk_words];
  const size_t head = size < sizeof first ? size : sizeof first;
  std::memcpy(first, from, head);
  std::memset(first + hole, 0, 8);
  uint64_t total = check_term(first, head / 4, 0);
  const size_t words = size / 4;
  for (size_t i = check_chunk_words; i < words; i += check_chunk_words)
    total +=
        check_term(from + 4 * i, words - i < check_chunk_words ? words - i : check_chunk_words, i / check_chunk_words);
  return total;
}

}  // namespace dr
