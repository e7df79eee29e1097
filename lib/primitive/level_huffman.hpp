// Canonical Huffman codes of levels below 64, codes of at most 11 bits, in blocks of eight independent strings (Huffman 1952; layout:
// codecs/value/log_quant/SPEC.md). A lookup decodes up to six levels; four strings at a time hide its latency.
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/split_levels.hpp"

namespace dr {

inline constexpr unsigned level_huffman_alphabet = 64, level_huffman_bits_max = 11;
inline constexpr size_t level_huffman_string = 512;  // levels of one string
inline constexpr size_t level_huffman_strings_max = level_block / level_huffman_string;
// Of a string's decoded levels: what is decoded beyond its end is on its own ground.
inline constexpr size_t level_huffman_stride = level_huffman_string + 64;

// Lengths of a complete code, 1 … 11 bits for each of `n` levels whose count is not 0, 0 for the others; 2 <= n.
inline void level_huffman_lengths(const uint32_t* counts, unsigned n, uint8_t* lengths) {
  struct node {
    uint64_t weight;
    uint16_t parent;
  };
  node nodes[2 * level_huffman_alphabet];
  uint8_t order[level_huffman_alphabet], depth[2 * level_huffman_alphabet];
  uint64_t weights[level_huffman_alphabet];
  unsigned used = 0;
  for (unsigned i = 0; i < n; ++i) {
    lengths[i] = 0;
    weights[i] = counts[i];
    if (!counts[i]) continue;
    unsigned at = used++;  // ascending, ties by level
    for (; at > 0 && counts[order[at - 1]] > counts[i]; --at) order[at] = order[at - 1];
    order[at] = static_cast<uint8_t>(i);
  }
  if (used < 2) {  // a code wants two words
    const unsigned one = used ? order[0] : 0;
    lengths[one] = lengths[one ? 0 : 1] = 1;
    return;
  }
  for (;;) {
    for (unsigned i = 0; i < used; ++i) nodes[i].weight = weights[order[i]];
    // Leaves and inner nodes are both made in ascending order: the two lightest are at the heads of two queues.
    unsigned leaf = 0, inner = used, end = used;
    const auto lightest = [&] {
      return leaf < used && (inner == end || nodes[leaf].weight <= nodes[inner].weight) ? leaf++ : inner++;
    };
    while (end < 2 * used - 1) {
      const unsigned a = lightest(), b = lightest();
      nodes[end].weight = nodes[a].weight + nodes[b].weight;
      nodes[a].parent = nodes[b].parent = static_cast<uint16_t>(end++);
    }
    unsigned longest = 0;
    depth[end - 1] = 0;
    for (unsigned i = end - 1; i-- > 0;) {
      depth[i] = static_cast<uint8_t>(depth[nodes[i].parent] + 1);
      if (depth[i] > longest) longest = depth[i];
    }
    if (longest <= level_huffman_bits_max) break;
    // Flatter weights, in the same order; equal ones in the end, of 6 bits at most.
    for (unsigned i = 0; i < used; ++i) weights[order[i]] = (weights[order[i]] + 1) / 2;
  }
  for (unsigned i = 0; i < used; ++i) lengths[order[i]] = depth[i];
}

struct level_huffman_code {
  uint16_t words[level_huffman_alphabet];  // the code, its first bit lowest, and its length in the upper 4 bits

  // False if the lengths are none of a complete code.
  bool set(const uint8_t* lengths, unsigned n) {
    uint32_t next = 0;
    std::memset(words, 0, sizeof words);
    for (unsigned length = 1; length <= level_huffman_bits_max; ++length) {
      next <<= 1;
      for (unsigned i = 0; i < n; ++i) {
        if (lengths[i] != length) continue;
        uint32_t reversed = 0;
        for (unsigned bit = 0; bit < length; ++bit) reversed |= (next >> bit & 1) << (length - 1 - bit);
        words[i] = static_cast<uint16_t>(reversed | length << 12);
        if (next++ >> length) return false;
      }
    }
    return next == 1u << level_huffman_bits_max;
  }
};

// What each 11 bits begin with.
struct level_huffman_table {
  static constexpr unsigned size = 1u << level_huffman_bits_max;
  uint16_t first[size];  // level | length << 8
  uint64_t some[size];   // up to six levels, a byte each; their number << 48; their bits << 56

  void set(const level_huffman_code& code, unsigned n, bool several) {
    for (unsigned i = 0; i < n; ++i) {
      const unsigned length = code.words[i] >> 12;
      if (!length) continue;
      for (unsigned at = code.words[i] & 0xfff; at < size; at += 1u << length)
        first[at] = static_cast<uint16_t>(i | length << 8);
    }
    if (!several) return;
    for (unsigned at = 0; at < size; ++at) {
      uint64_t levels = 0, number = 0, bits = 0;
      for (; number < 6; ++number) {
        const unsigned next = first[at >> bits];
        if (bits + (next >> 8) > level_huffman_bits_max) break;
        levels |= uint64_t{next & 255} << 8 * number;
        bits += next >> 8;
      }
      some[at] = levels | number << 48 | bits << 56;
    }
  }
};

// Bytes of a block's body, at most.
constexpr size_t level_huffman_body_bound(size_t n) {
  return (n * level_huffman_bits_max + 7) / 8 + 3 * ceil_div(n, level_huffman_string);
}

//   levels [n], n <= level_block, each with a word     out: level_huffman_body_bound(n) + level_slack bytes
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

// Inlined into a function of each level of instructions, so that its shifts are that level's.
#if defined(__GNUC__)
#define DR_EVERYWHERE inline __attribute__((always_inline))
#else
#define DR_EVERYWHERE inline
#endif

struct level_huffman_lane {
  const uint8_t* in;
  uint64_t bit;
  uint8_t *out, *end;

  DR_EVERYWHERE void fast(const level_huffman_table& table) {  // out + 30 <= end: at most 5 · 11 bits, 5 · 6 levels
    uint64_t word;
    std::memcpy(&word, in + bit / 8, 8);
    word >>= bit % 8;
    for (int k = 0; k < 5; ++k) {
      const uint64_t entry = table.some[word % level_huffman_table::size];
      std::memcpy(out, &entry, 8);
      out += entry >> 48 & 255;
      bit += entry >> 56;
      word >>= entry >> 56;
    }
  }
  DR_EVERYWHERE void slow(const level_huffman_table& table) {
    uint32_t word;
    std::memcpy(&word, in + bit / 8, 4);
    const unsigned entry = table.first[(word >> bit % 8) % level_huffman_table::size];
    *out++ = static_cast<uint8_t>(entry);
    bit += entry >> 8;
  }
};

// What may be read behind a body, whatever its bytes: a string of 512 levels has at most 704.
inline constexpr size_t level_huffman_slack = level_huffman_string * level_huffman_bits_max / 8 + 8;

//   body: `size` bytes and level_huffman_slack behind them that may be read    1 <= n <= level_block
//   several: the table knows more than the first level     levels: string j at j · level_huffman_stride
// Returns the bytes that the levels take; 0 if the body is corrupt.
DR_EVERYWHERE size_t level_huffman_decode_with(const uint8_t* body, size_t size, size_t n,
                                               const level_huffman_table& table, bool several, uint8_t* levels) {
  const size_t strings = (n + level_huffman_string - 1) / level_huffman_string, head = 2 * (strings - 1);
  if (size < head) return 0;
  level_huffman_lane lanes[level_huffman_strings_max];
  size_t ends[level_huffman_strings_max], at = head;
  for (size_t j = 0; j < strings; ++j) {
    uint16_t length = 0;
    if (j + 1 < strings) std::memcpy(&length, body + 2 * j, 2);
    if (j + 1 < strings && length > size - at) return 0;
    const size_t rest = n - j * level_huffman_string;
    uint8_t* const to = levels + j * level_huffman_stride;
    lanes[j] = {body + at, 0, to, to + (rest < level_huffman_string ? rest : level_huffman_string)};
    at = j + 1 < strings ? at + length : size;
    ends[j] = at;
  }
  if (several) {
    size_t j = 0;
    for (; j + 4 <= strings; j += 4) {
      level_huffman_lane a = lanes[j], b = lanes[j + 1], c = lanes[j + 2], d = lanes[j + 3];
      while (a.end - a.out >= 30 && b.end - b.out >= 30 && c.end - c.out >= 30 && d.end - d.out >= 30) {
        a.fast(table);
        b.fast(table);
        c.fast(table);
        d.fast(table);
      }
      lanes[j] = a;
      lanes[j + 1] = b;
      lanes[j + 2] = c;
      lanes[j + 3] = d;
    }
    for (j = 0; j < strings; ++j)
      while (lanes[j].end - lanes[j].out >= 30) lanes[j].fast(table);
  }
  for (size_t j = 0; j < strings; ++j) {
    level_huffman_lane& l = lanes[j];
    while (l.out < l.end) l.slow(table);
    const auto room = static_cast<size_t>(body + ends[j] - l.in), string = static_cast<size_t>((l.bit + 7) / 8);
    if (string > room || (string < room && j + 1 < strings)) return 0;
    if (l.bit % 8 && l.in[l.bit / 8] >> l.bit % 8) return 0;
    at = static_cast<size_t>(l.in - body) + string;
  }
  return at;
}
inline size_t level_huffman_decode_scalar(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                          bool several, uint8_t* levels) {
  return level_huffman_decode_with(body, size, n, table, several, levels);
}

extern const cpu_table<decltype(&level_huffman_encode_scalar)> level_huffman_encode;
extern const cpu_table<decltype(&level_huffman_decode_scalar)> level_huffman_decode;

#if DR_X86
uint8_t* level_huffman_encode_avx512(const uint8_t* levels, size_t n, const level_huffman_code& code, uint8_t* out);
size_t level_huffman_decode_avx2(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                 bool several, uint8_t* levels);
#endif

}  // namespace dr
