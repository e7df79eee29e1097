// Which form is shorter for levels of a table, Huffman or split Golomb and runs, by a sample of them.
#pragma once

#include <cstdint>

#include "codecs/family/huffman/level_words.hpp"
#include "codecs/family/levels/level_code.hpp"

namespace dr {

inline constexpr unsigned table_levels_max = 64;
static_assert(table_levels_max == level_huffman_alphabet && level_block == level_huffman_block);

// With more levels than `all`, one in eight is sampled, in groups of 64: the loss is below 0.01 bits a level.
struct level_sample {
  static constexpr uint64_t all = 65536, group = 64, apart = 512;
  uint64_t step;  // from a group to the next
  uint64_t seen;  // levels in it

  DR_HD static constexpr level_sample of(uint64_t n) {
    const uint64_t step = n <= all ? group : apart, groups = ceil_div(n, step), last = n - (groups - 1) * step;
    return {step, (groups - 1) * group + (last < group ? last : group)};
  }
  // Not all levels are in it: one that it lacks may be there.
  DR_HD constexpr bool is_part() const { return step == apart; }
  DR_HD constexpr bool has(uint64_t i) const { return i % step < group; }
};

// Of n levels of this sum that take `golomb` bits by split Golomb: those, or those of runs, where they are for them.
DR_HD constexpr uint64_t level_bits(uint64_t golomb, uint64_t n, uint64_t sum) {
  if (sum == 0) return 0;
  if (2 * sum >= n) return golomb;
  // A run costs about log2(e · bits of the string / zeros), and a twentieth for the code.
  const uint64_t runs = sum * (log2_q16_above(n + sum, sum) + 91990) >> 16;
  return runs < golomb ? runs : golomb;
}
// What Huffman takes beside its words: a table of lengths, a size and half a byte a string.
DR_HD constexpr uint64_t level_huffman_head_bits(unsigned levels, uint64_t seen, uint64_t n) {
  return 8 * ceil_div(levels, 2) * seen / n + seen / level_huffman_string * 20;
}

}  // namespace dr
