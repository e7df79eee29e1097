// Gaps as symbols, the place and the value of their two highest bits, and extras, the bits below; and the lengths of
// the symbols' code as they are stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/family/huffman/level_huffman.hpp"
#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

inline constexpr unsigned gap_symbols = level_huffman_alphabet;
inline constexpr uint64_t gap_huffman_block = level_huffman_block;

// Bits of the extra, and the bits before it: gap = top << width | extra.
constexpr unsigned gap_width(unsigned symbol) { return symbol < 4 ? 0 : symbol / 2 - 1; }
constexpr unsigned gap_top(unsigned symbol) { return symbol - 2 * gap_width(symbol); }

// Bytes that kernels may read and write past extras, and read past the gaps and symbols of a block.
inline constexpr size_t gap_slack = 128;

// ---- Symbols and extras of a block -----------------------------------------------------------------------

//   x [n] ascending from base on, n <= gap_huffman_block     symbols, gaps [n]
DR_EVERYWHERE void gap_split_with(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t gap = x[i] - base;
    const unsigned width = gap < 4 ? 0 : bit_width(gap) - 2;
    symbols[i] = static_cast<uint8_t>(2 * width + (gap >> width));
    gaps[i] = gap;
    base = x[i] + 1;
  }
}
inline void gap_split_scalar(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps) {
  gap_split_with(x, n, base, symbols, gaps);
}

// Extras of n gaps, with gap_slack bytes of room after them. Returns the end.
DR_EVERYWHERE uint8_t* gap_extras_with(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out) {
  word_writer bits(out);
  for (size_t i = 0; i < n; ++i) {
    const unsigned width = gap_width(symbols[i]);
    bits.put(gaps[i] & low_mask(width), width);
  }
  return bits.finish();
}
inline uint8_t* gap_extras_scalar(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out) {
  return gap_extras_with(symbols, gaps, n, out);
}

//   symbols: string j at j · level_huffman_stride     extras: `size` bytes, gap_slack readable bytes after them
// False unless the extras are all used, their padding is zero and the last index is end − 1.
DR_EVERYWHERE bool gap_join_with(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base,
                                 uint64_t end, uint32_t* x) {
  static constexpr auto widths = [] {
    std::array<uint8_t, gap_symbols> w{};
    for (unsigned s = 0; s < gap_symbols; ++s) w[s] = static_cast<uint8_t>(gap_width(s));
    return w;
  }();
  const auto each_string = [&](auto&& f) {
    for (size_t begin = 0; begin < n; begin += level_huffman_string)
      f(symbols + begin / level_huffman_string * level_huffman_stride, begin,
        n - begin < level_huffman_string ? n - begin : level_huffman_string);
  };
  uint64_t bits = 0;
  each_string([&](const uint8_t* of, size_t, size_t length) {
    uint32_t sum = 0;
    for (size_t i = 0; i < length; ++i) sum += (of[i] < 2 ? 2u : of[i]) / 2 - 1;
    bits += sum;
  });
  if ((bits + 7) / 8 != size || (bits % 8 && extras[bits / 8] >> bits % 8)) return false;
  uint64_t bit = 0, next = base;  // far below 2^64: so if it is `end` at last, no index was beyond
  each_string([&](const uint8_t* of, size_t begin, size_t length) {
    for (size_t i = 0; i < length; ++i) {
      uint64_t word;
      std::memcpy(&word, extras + bit / 8, 8);
      const unsigned width = widths[of[i]];
      const uint64_t extra = word >> bit % 8 & ((uint64_t{1} << width) - 1);
      bit += width;
      next += (uint64_t{of[i]} - 2 * width) << width | extra;
      x[begin + i] = static_cast<uint32_t>(next++);
    }
  });
  return next == end;
}
inline bool gap_join_scalar(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base,
                            uint64_t end, uint32_t* x) {
  return gap_join_with(symbols, n, extras, size, base, end, x);
}

void gap_split_avx2(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps);
uint8_t* gap_extras_avx2(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out);
bool gap_join_avx2(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base, uint64_t end,
                   uint32_t* x);
void gap_split_avx512(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps);
uint8_t* gap_extras_avx512(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out);
bool gap_join_avx512(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base, uint64_t end,
                     uint32_t* x);
inline constexpr cpu_table<decltype(&gap_split_scalar)> gap_split{gap_split_scalar, on_x86(gap_split_avx2),
                                                                  on_x86(gap_split_avx512)};
inline constexpr cpu_table<decltype(&gap_extras_scalar)> gap_extras{gap_extras_scalar, on_x86(gap_extras_avx2),
                                                                    on_x86(gap_extras_avx512)};
inline constexpr cpu_table<decltype(&gap_join_scalar)> gap_join{gap_join_scalar, on_x86(gap_join_avx2),
                                                                on_x86(gap_join_avx512)};

// ---- Lengths of a code -----------------------------------------------------------------------------------

// Decoders build a table of 2^longest entries per code; half of 2^11 costs 0.1 % of the bits.
inline constexpr unsigned gap_length_max = 10;

// Calls put(bits, count) for a code's description: runs of symbols without a word, and for other symbols the length as
// what it is more than the one before.
template <class Put>
void each_length_word(const uint8_t* lengths, Put&& put) {
  unsigned count = gap_symbols, before = 3;
  while (!lengths[count - 1]) --count;
  put(count - 1, 6);
  for (unsigned i = 0; i < count; ++i) {
    if (lengths[i] == 0) {
      unsigned run = 1;
      while (!lengths[i + run]) ++run;
      const unsigned below = bit_width(run) - 1;  // Elias's gamma code
      put(7, 4);
      put(1u << below, below + 1);
      put(run & ((1u << below) - 1), below);
      i += run - 1;
      continue;
    }
    const bool less = lengths[i] < before;
    switch (less ? before - lengths[i] : lengths[i] - before) {
      case 0: put(0, 1); break;
      case 1: put(1 | unsigned{less} << 2, 3); break;
      case 2: put(3 | unsigned{less} << 3, 4); break;
      default: put(15 | unsigned{lengths[i]} << 4, 8);
    }
    before = lengths[i];
  }
}
inline uint32_t lengths_bits(const uint8_t* lengths) {
  uint32_t bits = 0;
  each_length_word(lengths, [&](uint32_t, unsigned length) { bits += length; });
  return bits;
}
inline uint8_t* put_lengths(const uint8_t* lengths, uint8_t* out) {
  bit_writer bits(out);
  each_length_word(lengths, [&](uint32_t word, unsigned length) { bits.put(word, length); });
  return bits.finish();
}
// lengths [gap_symbols]. Returns the end, or nullptr.
inline const uint8_t* get_lengths(const uint8_t* in, const uint8_t* end, uint8_t* lengths) {
  const auto size = static_cast<uint64_t>(end - in);
  uint64_t taken = 0;
  bit_reader bits(in, 8 * size);  // zeros past its end, which are noticed
  const auto get = [&](unsigned n) {
    taken += n;
    return static_cast<unsigned>(bits.get(n));
  };
  std::memset(lengths, 0, gap_symbols);
  const unsigned count = get(6) + 1;
  int before = 3;
  for (unsigned i = 0; i < count; ++i) {
    if (!get(1)) {
    } else if (!get(1)) {
      before += get(1) ? -1 : 1;
    } else if (!get(1)) {
      before += get(1) ? -2 : 2;
    } else if (get(1)) {
      before = static_cast<int>(get(4));
    } else {
      unsigned below = 0;
      while (below < 6 && !get(1)) ++below;
      const unsigned run = 1u << below | get(below);
      if (run >= count - i) return nullptr;  // the last symbol has a word
      i += run - 1;
      continue;
    }
    if (before < 1 || before > static_cast<int>(level_huffman_bits_max)) return nullptr;
    lengths[i] = static_cast<uint8_t>(before);
  }
  if (taken > 8 * size || !padding_is_zero(in, taken)) return nullptr;
  return in + ceil_div(taken, 8);
}

}  // namespace dr
