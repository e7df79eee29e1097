// Which words of a tensor differ from its base, bit for bit.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// Rows of `width` words of `size` bytes (1, 2, 4 or 8).
struct word_diff {
  const std::byte *base, *now;
  uint32_t size, width;
};

// Of rows [first, first + n): those of which a word differs, ascending from 0 = row `first`. Returns how many.
//   positions [n], old and values [n · width]: room for all; with nullptr they are only counted
uint64_t diff_rows(const word_diff& d, uint64_t first, uint64_t n, uint32_t* positions, void* old, void* values);

// Of n words of one value a row, as diff_rows; positions count from `at`.
uint64_t diff_words(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
                    std::byte* values, cpu_level level);

// Of n words, a multiple of diff_step. Twins: word_diff_avx2.cpp and …_avx512.cpp. (The scalar one takes any n.)
inline constexpr uint64_t diff_step = 64;
uint64_t diff_words_scalar(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values);
uint64_t diff_words_avx2(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                         std::byte* old, std::byte* values);
uint64_t diff_words_avx512(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values);
// The twins look for changes in blocks, as offsets that fit in 16 bits, and fetch the words while they are in a cache.
inline constexpr uint64_t diff_block = 4096;
template <class Bits>
DR_EVERYWHERE void fetch_found(const Bits* base, const Bits* now, const uint16_t* offsets, uint64_t n, Bits* old,
                               Bits* values) {
  for (uint64_t i = 0; i < n; ++i) {
    old[i] = base[offsets[i]];
    values[i] = now[offsets[i]];
  }
}

inline constexpr cpu_table<decltype(&diff_words_scalar)> diff_vectors{diff_words_scalar, on_x86(diff_words_avx2),
                                                                      on_x86(diff_words_avx512)};

}  // namespace dr
