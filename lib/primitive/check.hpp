// The frame's check: a sum of integers in any order, so any number of threads or blocks computes it in one pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/rng.hpp"

namespace dr {

inline constexpr size_t check_chunk_words = 1024;

// T[i]. A GPU computes it, which is cheaper there than a table.
DR_HD constexpr uint32_t check_factor(uint32_t i) { return static_cast<uint32_t>(mix64((i + 1) * golden) >> 32) | 1; }

inline constexpr auto check_table = [] {
  std::array<uint32_t, check_chunk_words> table{};
  for (uint32_t i = 0; i < table.size(); ++i) table[i] = check_factor(i);
  return table;
}();

inline constexpr uint64_t check_table_sum = [] {
  uint64_t sum = 0;
  for (const uint32_t t : check_table) sum += t;
  return sum;
}();

// The sum of the terms of the chunks `first`, `first` + 1, … of `words` words; only the last chunk may be short.
DR_EVERYWHERE uint64_t check_terms_with(const uint8_t* from, size_t words, uint64_t first) {
  uint64_t total = 0;
  for (; words; ++first) {
    const size_t n = words < check_chunk_words ? words : check_chunk_words;
    uint64_t sum = 0;
    // (w + 1) · T, as a product of 32 bits that compilers turn into vectors.
    for (size_t i = 0; i < n; ++i) sum += uint64_t{load<uint32_t>(from + 4 * i)} * check_table[i] + check_table[i];
    total += mix64(sum + first * golden);
    from += 4 * n;
    words -= n;
  }
  return total;
}
inline uint64_t check_terms_scalar(const uint8_t* from, size_t words, uint64_t first) {
  return check_terms_with(from, words, first);
}

uint64_t check_terms_avx2(const uint8_t* from, size_t words, uint64_t first);
uint64_t check_terms_avx512(const uint8_t* from, size_t words, uint64_t first);
uint64_t check_terms_neon(const uint8_t* from, size_t words, uint64_t first);
inline constexpr cpu_table<decltype(&check_terms_scalar)> check_terms{
    check_terms_scalar, on_x86(check_terms_avx2), on_x86(check_terms_avx512), on_arm(check_terms_neon)};

// The check of `size` bytes, a multiple of 4.
inline uint64_t check(const uint8_t* from, size_t size) { return check_terms.best()(from, size / 4, 0); }

// The same, with the 8 bytes at `hole` (within the first chunk, a multiple of 4) read as 0.
inline uint64_t check_with_hole(const uint8_t* from, size_t size, size_t hole) {
  uint8_t first[4 * check_chunk_words];
  const size_t head = size < sizeof first ? size : sizeof first;
  std::memcpy(first, from, head);
  std::memset(first + hole, 0, 8);
  const auto terms = check_terms.best();
  return terms(first, head / 4, 0) + terms(from + head, (size - head) / 4, 1);
}

}  // namespace dr
