// Finds the words of a tensor that differ from its base, bit for bit.
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

// Lists the rows of [first, first + n) in which a word differs, ascending, 0 is row `first`. Returns their number.
//   positions [n], old and values [n · width]: space for all rows; with nullptr they are only counted
uint64_t diff_rows(const word_diff& d, uint64_t first, uint64_t n, uint32_t* positions, void* old, void* values);

// diff_rows for n words in rows of one value; positions count from `at`.
uint64_t diff_words(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
                    std::byte* values, cpu_level level);

// n is a multiple of diff_step. Vector versions: word_diff_avx2.cpp, …_avx512.cpp and …_neon.cpp. (The scalar one accepts any n.)
inline constexpr uint64_t diff_step = 64;
uint64_t diff_words_scalar(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values);
uint64_t diff_words_avx2(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                         std::byte* old, std::byte* values);
uint64_t diff_words_avx512(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values);
uint64_t diff_words_neon(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                         std::byte* old, std::byte* values);
// The vector versions list changes by blocks, as offsets of 16 bits, and read the words while they are in a cache.
inline constexpr uint64_t diff_block = 4096;
template <class Bits>
DR_EVERYWHERE void fetch_found(const Bits* base, const Bits* now, const uint16_t* offsets, uint64_t n, Bits* old,
                               Bits* values) {
  for (uint64_t i = 0; i < n; ++i) {
    old[i] = base[offsets[i]];
    values[i] = now[offsets[i]];
  }
}

// differing(a, b): a bit for every one of 64 words; Set lists bits (set_bits_vectors.hpp), and may write so many more.
template <class Set, class Bits, class F>
DR_EVERYWHERE uint64_t diff_by_masks(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                                     std::byte* old, std::byte* values, F&& differing) {
  const auto* a = reinterpret_cast<const Bits*>(d.base) + first;
  const auto* b = reinterpret_cast<const Bits*>(d.now) + first;
  auto *const x = reinterpret_cast<Bits*>(old), *const y = reinterpret_cast<Bits*>(values);
  uint16_t offsets[diff_block + Set::spare];
  uint64_t found = 0;
  for (uint64_t end; n; n -= end, a += end, b += end, at += static_cast<uint32_t>(end)) {
    end = n < diff_block ? n : diff_block;
    uint64_t here = 0;
    for (uint64_t i = 0; i < end; i += 64)
      here += Set::put(differing(a + i, b + i), static_cast<uint32_t>(i), offsets + here);
    if (positions) {
      for (uint64_t i = 0; i < here; ++i) positions[found + i] = at + offsets[i];
      fetch_found(a, b, offsets, here, x + found, y + found);
    }
    found += here;
  }
  return found;
}

inline constexpr cpu_table<decltype(&diff_words_scalar)> diff_vectors{
    diff_words_scalar, on_x86(diff_words_avx2), on_x86(diff_words_avx512), on_arm(diff_words_neon)};

}  // namespace dr
