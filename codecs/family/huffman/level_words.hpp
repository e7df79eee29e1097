// Canonical Huffman codes of levels: sizes, and words as they stand in a payload (layout: codecs/value/log_quant/SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"

namespace dr {

inline constexpr unsigned level_huffman_alphabet = 64, level_huffman_bits_max = 11;
inline constexpr size_t level_huffman_string = 512, level_huffman_block = 4096;  // levels
inline constexpr size_t level_huffman_strings_max = level_huffman_block / level_huffman_string;

// Bytes of a block's body, at most.
DR_HD constexpr size_t level_huffman_body_bound(size_t n) {
  return (n * level_huffman_bits_max + 7) / 8 + 3 * ceil_div(n, level_huffman_string);
}

// A code of `length` bits, its first bit lowest, and its length in the upper 4 bits.
DR_HD constexpr uint16_t level_huffman_word(uint32_t code, unsigned length) {
  code = (code & 0x5555) << 1 | (code >> 1 & 0x5555);
  code = (code & 0x3333) << 2 | (code >> 2 & 0x3333);
  code = (code & 0x0f0f) << 4 | (code >> 4 & 0x0f0f);
  code = (code & 0x00ff) << 8 | (code >> 8 & 0x00ff);
  return static_cast<uint16_t>(code >> (16 - length) | length << 12);
}

}  // namespace dr
