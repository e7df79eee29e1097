// Canonical Huffman codes of levels below 64, codes of at most 11 bits, in blocks of eight independent strings (Huffman
// 1952; layout: codecs/value/log_quant/SPEC.md). A lookup decodes up to six levels; four strings at a time hide its
// latency.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/family/huffman/level_words.hpp"
#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// Of a string's decoded levels: levels decoded beyond its end go to memory of their own.
inline constexpr size_t level_huffman_stride = level_huffman_string + 64;

struct level_huffman_code {
  uint16_t words[level_huffman_alphabet];     // the code, its first bit lowest, and its length in the upper 4 bits
  uint8_t order[level_huffman_alphabet];      // levels with a word, ascending by (length, level)
  uint8_t begin[level_huffman_bits_max + 2];  // start of a length in `order`; that after the last is the end

  unsigned longest() const {
    unsigned length = level_huffman_bits_max;
    while (length > 1 && begin[length] == begin[length + 1]) --length;
    return length;
  }

  // lengths: at most level_huffman_bits_max. False if they do not form a complete code.
  bool set(const uint8_t* lengths, unsigned n) {
    std::memset(words, 0, sizeof words);
    uint8_t counts[16] = {}, at[16];
    for (unsigned i = 0; i < n; ++i) ++counts[lengths[i]];
    uint32_t next = 0, code[16] = {};
    begin[0] = begin[1] = 0;
    for (unsigned length = 1; length <= level_huffman_bits_max; ++length) {
      next <<= 1;
      code[length] = next;
      next += counts[length];
      at[length] = begin[length];
      begin[length + 1] = static_cast<uint8_t>(begin[length] + counts[length]);
    }
    if (next != 1u << level_huffman_bits_max) return false;
    for (unsigned i = 0; i < n; ++i) {
      const unsigned length = lengths[i];
      if (!length) continue;
      order[at[length]++] = static_cast<uint8_t>(i);
      words[i] = level_huffman_word(code[length]++, length);
    }
    return true;
  }
};

// The prefix of a string: up to six levels.
inline constexpr unsigned level_huffman_several = 6;

// some [end], a power of two: of places 2^k + at, k bits that are `at`, the first level; 0 for those that do not hold a
// whole word, and for place 1. Adds the levels that follow the first in the remaining, fewer bits.
//   lengths: of the levels' words     a_bit: a word of one bit exists, without which 11 bits hold not more than five
DR_EVERYWHERE void level_huffman_follow_with(uint64_t* some, size_t end, const uint8_t* lengths, bool a_bit) {
  constexpr uint64_t levels_but_one = low_mask(8 * level_huffman_several) & ~uint64_t{255},
                     numbers = uint64_t{255} << 56 | 255;
  for (size_t i = 2; i < end; ++i) {
    const uint64_t one = some[i];
    uint64_t more = some[i >> (one & 63)];             // 0 if there is none
    if (a_bit && more >> 56 == level_huffman_several)  // then the last of them has no room
      more -= uint64_t{1} << 56 | lengths[more >> 8 * level_huffman_several & 63];
    some[i] = one + ((more & levels_but_one) << 8) + (more & numbers);
  }
}
inline void level_huffman_follow_scalar(uint64_t* some, size_t end, const uint8_t* lengths, bool a_bit) {
  a_bit ? level_huffman_follow_with(some, end, lengths, true) : level_huffman_follow_with(some, end, lengths, false);
}
void level_huffman_follow_avx512(uint64_t* some, size_t end, const uint8_t* lengths, bool a_bit);
inline constexpr cpu_table<decltype(&level_huffman_follow_scalar)> level_huffman_follow{
    level_huffman_follow_scalar, nullptr, on_x86(level_huffman_follow_avx512)};

struct level_huffman_table {
  unsigned bits;  // of a lookup
  uint8_t lengths[level_huffman_alphabet];
  // Of k <= bits bits that are `at` what `at` holds whole, at 2^k + at: its bits, up to six levels, their number, from
  // byte 0, 1 and 7 on.
  uint64_t some[2u << level_huffman_bits_max];

  // A wider table costs more to build: about the time of one level per entry.
  static constexpr unsigned bits_for(uint64_t n) { return n < 512 ? 7 : n < 8192 ? 9 : n < 32768 ? 10 : 11; }

  // For `n` levels to be decoded.
  void set(const level_huffman_code& code, uint64_t n) {
    const unsigned longest = code.longest(), preferred = bits_for(n);
    bits = preferred > longest ? preferred : longest;
    std::memset(lengths, 0, sizeof lengths);
    // A prefix of the bits is also a prefix with one more bit.
    some[1] = 0;
    for (unsigned k = 1; k <= bits; ++k) {
      const size_t half = size_t{1} << (k - 1);
      std::memcpy(some + 2 * half, some + half, 8 * half);
      std::memcpy(some + 3 * half, some + half, 8 * half);
      if (k > longest) continue;
      for (unsigned i = code.begin[k]; i < code.begin[k + 1]; ++i) {
        const unsigned level = code.order[i];
        lengths[level] = static_cast<uint8_t>(k);
        some[2 * half + (code.words[level] & 0xfff)] = k | level << 8 | uint64_t{1} << 56;
      }
    }
    level_huffman_follow.best()(some, size_t{2} << bits, lengths, code.begin[2] != 0);
  }
};

//   levels [n], n <= level_huffman_block, all with a word     out: level_huffman_body_bound(n) + 8 bytes
// Returns the end.
inline uint8_t* level_huffman_encode_scalar(const uint8_t* levels, size_t n, const level_huffman_code& code,
                                            uint8_t* out) {
  const size_t strings = ceil_div(n, level_huffman_string);
  uint8_t* size = out;
  out += 2 * (strings - 1);
  for (size_t begin = 0; begin < n; begin += level_huffman_string) {
    const size_t end = n - begin < level_huffman_string ? n : begin + level_huffman_string;
    word_writer bits(out);
    for (size_t i = begin; i < end; ++i) bits.put(code.words[levels[i]] & 0xfffu, code.words[levels[i]] >> 12);
    uint8_t* const behind = bits.finish();
    if (end < n) {
      store(size, static_cast<uint16_t>(behind - out));
      size += 2;
    }
    out = behind;
  }
  return out;
}

struct level_huffman_lane {
  const uint8_t* in;
  uint64_t bit;
  uint8_t *out, *end;
  uint64_t word;

  // some: has the bits of mask
  DR_EVERYWHERE void load() {
    std::memcpy(&word, in + bit / 8, 8);
    word >>= bit % 8;
  }
  // end - out >= 6; at most 11 bits, so five after a load()
  DR_EVERYWHERE void step(const uint64_t* some, uint64_t mask) {
    const uint64_t entry = some[word & mask], some_levels = entry >> 8;
    std::memcpy(out, &some_levels, 8);
    out += entry >> 56;
    bit += entry & 255;
    word >>= entry & 63;
  }
  DR_EVERYWHERE void slow(const uint64_t* some, uint64_t mask, const uint8_t* lengths) {
    load();
    uint64_t entry = some[word & mask];
    const auto left = static_cast<size_t>(end - out), number = static_cast<size_t>(entry >> 56),
               used = static_cast<size_t>(entry & 255);
    entry >>= 8;
    std::memcpy(out, &entry, 8);
    if (number <= left) {
      out += number;
      bit += used;
      return;
    }
    for (; out < end; entry >>= 8, ++out) bit += lengths[entry & 63];
  }
};

// Bytes that may be read past a body, for any contents: a string of 512 levels has at most 704.
inline constexpr size_t level_huffman_slack = level_huffman_string * level_huffman_bits_max / 8 + 8;

//   body: `size` bytes and level_huffman_slack readable bytes after them    1 <= n <= level_huffman_block
//   levels: string j at j · level_huffman_stride
// Returns the bytes that the levels take; 0 if the body is corrupt.
DR_EVERYWHERE size_t level_huffman_decode_with(const uint8_t* body, size_t size, size_t n,
                                               const level_huffman_table& table, uint8_t* levels) {
  const size_t strings = (n + level_huffman_string - 1) / level_huffman_string, head = 2 * (strings - 1);
  if (size < head) return 0;
  const uint64_t mask = (uint64_t{1} << table.bits) - 1;
  const uint64_t* const some = table.some + (mask + 1);
  level_huffman_lane lanes[level_huffman_strings_max];
  size_t ends[level_huffman_strings_max], at = head;
  for (size_t j = 0; j < strings; ++j) {
    uint16_t length = 0;
    if (j + 1 < strings) std::memcpy(&length, body + 2 * j, 2);
    if (j + 1 < strings && length > size - at) return 0;
    const size_t rest = n - j * level_huffman_string;
    uint8_t* const to = levels + j * level_huffman_stride;
    lanes[j] = {body + at, 0, to, to + (rest < level_huffman_string ? rest : level_huffman_string), 0};
    at = j + 1 < strings ? at + length : size;
    ends[j] = at;
  }
  size_t j = 0;
  for (; j + 4 <= strings; j += 4) {
    level_huffman_lane a = lanes[j], b = lanes[j + 1], c = lanes[j + 2], d = lanes[j + 3];
    const auto all_have = [&](ptrdiff_t count) {
      return a.end - a.out >= count && b.end - b.out >= count && c.end - c.out >= count && d.end - d.out >= count;
    };
    // In turns, so that the next lookups to be ready are near.
    const auto load = [&]() __attribute__((always_inline)) { a.load(), b.load(), c.load(), d.load(); };
    const auto step = [&]() __attribute__((always_inline)) {
      a.step(some, mask), b.step(some, mask), c.step(some, mask), d.step(some, mask);
    };
    while (all_have(30)) {
      load();
      step(), step(), step(), step(), step();
    }
    while (all_have(6)) {
      load();
      step();
    }
    lanes[j] = a;
    lanes[j + 1] = b;
    lanes[j + 2] = c;
    lanes[j + 3] = d;
  }
  for (j = 0; j < strings; ++j) {
    level_huffman_lane l = lanes[j];
    while (l.end - l.out >= 30) {
      l.load();
      for (int k = 0; k < 5; ++k) l.step(some, mask);
    }
    while (l.out < l.end) l.slow(some, mask, table.lengths);
    const auto room = static_cast<size_t>(body + ends[j] - l.in), string = static_cast<size_t>((l.bit + 7) / 8);
    if (string > room || (string < room && j + 1 < strings)) return 0;
    if (l.bit % 8 && l.in[l.bit / 8] >> l.bit % 8) return 0;
    at = static_cast<size_t>(l.in - body) + string;
  }
  return at;
}
inline size_t level_huffman_decode_scalar(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                          uint8_t* levels) {
  return level_huffman_decode_with(body, size, n, table, levels);
}

uint8_t* level_huffman_encode_avx2(const uint8_t* levels, size_t n, const level_huffman_code& code, uint8_t* out);
uint8_t* level_huffman_encode_avx512(const uint8_t* levels, size_t n, const level_huffman_code& code, uint8_t* out);
size_t level_huffman_decode_avx2(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                 uint8_t* levels);
inline constexpr cpu_table<decltype(&level_huffman_encode_scalar)> level_huffman_encode{
    level_huffman_encode_scalar, on_x86(level_huffman_encode_avx2), on_x86(level_huffman_encode_avx512)};
inline constexpr cpu_table<decltype(&level_huffman_decode_scalar)> level_huffman_decode{
    level_huffman_decode_scalar, on_x86(level_huffman_decode_avx2)};

}  // namespace dr
