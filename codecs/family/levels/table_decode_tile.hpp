// Coded levels of a table on a GPU, back: a block of lanes reads the head of a job's levels, then a block of lanes each
// decodes 4096 of them (reference: level_blocks.hpp, table_levels.hpp). All of it comes off the wire.
#pragma once

#include <cstdint>

#include "codecs/family/levels/table_choice.hpp"
#include "primitive/block.hpp"

namespace dr {

inline constexpr unsigned level_decode_lanes = 256;
inline constexpr unsigned level_decode_own = level_block / level_decode_lanes;  // consecutive numbers of a lane

// ---- The head ----------------------------------------------------------------------------------------------

// A lookup of 11 bits: up to three levels. The bits that the first, two and three of them take (0: there are not so
// many), 4 bits each; then the levels, 6 bits each.
inline constexpr uint32_t level_lookups = 1u << level_huffman_bits_max;

// What decoding a block needs, in a job's scratch.
struct table_source {
  uint32_t huffman, code;  // code: of a lone block
  uint64_t at;             // of a lone block's body
  uint32_t lookups[level_lookups];
};
// Behind it come the positions of bodies, if there are several.
DR_HD constexpr uint64_t table_starts_size(uint64_t n) { return level_blocks(n) > 1 ? 8 * level_blocks(n) : 0; }

struct table_open_shared {
  uint8_t length[table_levels_max];
  uint16_t one[level_lookups];  // level, and length << 8
};

// Huffman's lengths of `count` levels at `from`, to lookups. False if they are no complete code.
template <class Block>
DR_HD bool open_lengths(Block& b, table_open_shared& s, const uint8_t* const& from, const uint32_t& count,
                        uint32_t* const& lookups) {
  typename Block::template each<uint32_t> share;  // of 2^11
  b.phase([&](unsigned lane) {
    share[lane] = 0;
    if (lane >= table_levels_max) return;
    const uint32_t length = lane < (count + 1) / 2 * 2 ? from[lane / 2] >> (lane % 2 * 4) & 15 : 0u;
    s.length[lane] = static_cast<uint8_t>(length);
    if (length)
      share[lane] = length > level_huffman_bits_max || lane >= count ? 2 * level_lookups : level_lookups >> length;
  });
  if (b.sum(share) != level_lookups) return false;
  typename Block::template each<uint32_t> words;
  b.phase([&](unsigned lane) {
    if (lane >= count) return;
    const uint32_t own = s.length[lane];
    uint32_t word = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t other = s.length[i];
      if (other && other < own) word += 1u << (own - other);
      word += other == own && i < lane;
    }
    words[lane] = own ? level_huffman_word(word, own) & 0xfffu : 0;
    if (!own) return;
    for (uint32_t k = words[lane]; k < level_lookups; k += 1u << own) s.one[k] = static_cast<uint16_t>(lane | own << 8);
  });
  b.phase([&](unsigned lane) {
    for (uint32_t k = lane; k < level_lookups; k += Block::lanes) {
      const uint32_t first = s.one[k], one = first >> 8, second = s.one[k >> one], two = one + (second >> 8);
      uint32_t entry = one | (first & 63) << 12;
      if (two <= level_huffman_bits_max) {
        const uint32_t third = s.one[k >> two], three = two + (third >> 8);
        entry |= two << 4 | (second & 63) << 18;
        if (three <= level_huffman_bits_max) entry |= three << 8 | (third & 63) << 24;
      }
      lookups[k] = entry;
    }
  });
  return true;
}

// Levels of a table of `count` from byte `from` <= size on, n > 0 of them, which end with the payload of `size` bytes.
// to.huffman is the caller's. False if they are corrupt.
template <class Block>
DR_HD bool open_table(Block& b, table_open_shared& s, const uint8_t* const& in, const uint64_t& from,
                      const uint64_t& size, const uint64_t& n, const uint32_t& count, const bool& huffman,
                      table_source& to, uint64_t* const& starts) {
  const uint64_t blocks = level_blocks(n), head = huffman ? (count + 1) / 2 : 0, entry = huffman ? 2 : 4;
  if (size - from < head) return false;
  if (huffman) {
    const uint8_t* const lengths = in + from;
    uint32_t* const lookups = to.lookups;
    if (!open_lengths(b, s, lengths, count, lookups)) return false;
  }
  const uint64_t table = from + head;
  if (blocks == 1) {
    const uint64_t at = b.template once<uint64_t>([&]() -> uint64_t {
      uint64_t code = 0;
      const uint8_t* const body = huffman ? in + table : get_varint(in + table, in + size, code);
      if (!body || code > level_code_max) return 0;
      to.code = static_cast<uint32_t>(code);
      return to.at = static_cast<uint64_t>(body - in);
    });
    return at != 0;
  }
  if ((size - table) / entry < blocks) return false;
  uint64_t at = table + entry * blocks;
  constexpr uint32_t own = 4;
  for (uint64_t first = 0; first < blocks; first += own * Block::lanes) {
    typename Block::template each<uint32_t> sizes;
    const auto size_of = [&](uint64_t i) { return i < blocks ? load_u16(in + table + entry * i + (entry - 2)) : 0u; };
    b.phase([&](unsigned lane) {
      sizes[lane] = 0;
      for (uint32_t k = 0; k < own; ++k) sizes[lane] += size_of(first + own * lane + k);
    });
    const uint32_t all = b.exclusive_sum(sizes);
    b.phase([&](unsigned lane) {
      uint64_t start = at + sizes[lane];
      for (uint32_t k = 0; k < own; ++k) {
        const uint64_t i = first + own * lane + k;
        if (i < blocks) starts[i] = start;
        start += size_of(i);
      }
    });
    at += all;
  }
  return at == size;
}

// ---- A block -----------------------------------------------------------------------------------------------

struct level_decode_shared {
  static constexpr uint32_t words = (static_cast<uint32_t>(level_body_max) + 15) / 16 * 4;
  alignas(16) uint32_t body[words + 4];  // and words that are read after it
  uint32_t place[level_block];           // Golomb: of the ones; runs: of the units; Huffman: lookups
  uint16_t level[level_block];
};
static_assert(level_lookups <= level_block);

// `count` numbers by split Golomb, which take the whole body, to s.level. False if the body is corrupt.
template <class Block>
DR_HD bool decode_split(Block& b, level_decode_shared& s, const uint32_t& size, const uint32_t& count,
                        const level_code& code) {
  const uint32_t low_bits = count * code.low_bits, low = (low_bits + 7) / 8;
  if (low > size) return false;
  const uint32_t short_low = code.divisor == 1 ? 1 : code.short_low;
  const uint32_t unary_at = 8 * low, end = 8 * size;
  const uint32_t first_word = unary_at / 32, end_word = (end + 31) / 32;
  const uint32_t lane_words = (end_word - first_word + Block::lanes - 1) / Block::lanes;
  const auto ones = [&](uint32_t w) {
    uint32_t word = s.body[w];
    if (w == first_word) word &= ~0u << unary_at % 32;
    if (w == end_word - 1 && end % 32) word &= ~(~0u << end % 32);
    return word;
  };
  const auto v = [&](uint32_t i) { return bits_at(s.body, i * code.low_bits, code.low_bits); };
  typename Block::template each<uint64_t> before;  // ones and, from bit 32 on, extra bits
  b.phase([&](unsigned lane) {
    uint64_t sum = 0;
    for (uint32_t k = 0; k < lane_words; ++k)
      if (const uint32_t w = first_word + lane * lane_words + k; w < end_word) sum += popcount(ones(w));
    for (uint32_t j = 0; j < level_decode_own; ++j)
      if (const uint32_t i = lane * level_decode_own + j; i < count) sum += uint64_t{v(i) >= short_low} << 32;
    before[lane] = sum;
  });
  const uint64_t all = b.exclusive_sum(before);
  if (static_cast<uint32_t>(all) < count) return false;
  b.phase([&](unsigned lane) {
    auto index = static_cast<uint32_t>(before[lane]);
    for (uint32_t k = 0; k < lane_words; ++k) {
      const uint32_t w = first_word + lane * lane_words + k;
      if (w >= end_word) break;
      for (uint32_t word = ones(w); word && index < count; word &= word - 1, ++index)
        s.place[index] = 32 * w + countr_zero(word) - unary_at;
    }
  });
  typename Block::template each<uint32_t> bad;
  b.phase([&](unsigned lane) {
    const uint32_t unary_bits = s.place[count - 1] + 1, unary = (unary_bits + 7) / 8;
    const auto extra_bits = static_cast<uint32_t>(all >> 32);
    const uint32_t at = unary_at + 8 * unary + static_cast<uint32_t>(before[lane] >> 32);
    uint32_t extra = bits_at(s.body, at < end ? at : end, level_decode_own), wrong = 0;
    for (uint32_t j = 0; j < level_decode_own; ++j) {
      const uint32_t i = lane * level_decode_own + j;
      if (i >= count) break;
      uint32_t r = v(i);
      if (r >= short_low) {
        r = 2 * r + (extra & 1) - short_low;
        extra >>= 1;
      }
      const uint32_t number = (s.place[i] - (i ? s.place[i - 1] + 1 : 0)) * code.divisor + r;
      wrong |= number > level_max;
      s.level[i] = static_cast<uint16_t>(number);
    }
    if (lane == 0) {
      const auto padding = [&](uint32_t bit) { return bit % 8 && bits_at(s.body, bit, 8 - bit % 8); };
      wrong |= low + unary + (extra_bits + 7) / 8 != size;
      if (!wrong)
        wrong = padding(low_bits) || padding(unary_at + unary_bits) || padding(unary_at + 8 * unary + extra_bits);
    }
    bad[lane] = wrong;
  });
  return b.max(bad) == 0;
}

// `units` units on n levels, to s.level.
template <class Block>
DR_HD bool decode_runs(Block& b, level_decode_shared& s, const uint32_t& size, const uint32_t& n,
                       const uint32_t& units) {
  if (units > n || (units == 0 && size != 0)) return false;
  typename Block::template each<uint32_t> before, bad;
  if (units > 0) {
    const level_code code = runs_code(n, units);
    if (!decode_split(b, s, size, units, code)) return false;
    b.phase([&](unsigned lane) {
      uint32_t sum = 0;
      for (uint32_t j = 0; j < level_decode_own; ++j)
        if (const uint32_t i = lane * level_decode_own + j; i < units) sum += s.level[i];
      before[lane] = sum;
    });
    (void)b.exclusive_sum(before);
    b.phase([&](unsigned lane) {
      uint32_t at = before[lane], wrong = 0;
      for (uint32_t j = 0; j < level_decode_own; ++j) {
        const uint32_t i = lane * level_decode_own + j;
        if (i >= units) break;
        at += s.level[i];
        wrong |= at >= n;
        s.place[i] = at;
      }
      bad[lane] = wrong;
    });
    if (b.max(bad) != 0) return false;
  }
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < n; i += Block::lanes) s.level[i] = 0;
  });
  // Units ascend: those of a level are side by side. The first leaves its number, the last counts from there.
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < units; i += Block::lanes)
      if (i == 0 || s.place[i - 1] != s.place[i]) s.level[s.place[i]] = static_cast<uint16_t>(i);
  });
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < units; i += Block::lanes)
      if (i + 1 == units || s.place[i + 1] != s.place[i])
        s.level[s.place[i]] = static_cast<uint16_t>(i + 1 - s.level[s.place[i]]);
  });
  return true;
}

// Strings of 512 levels, a lane each.
template <class Block>
DR_HD bool decode_huffman(Block& b, level_decode_shared& s, const uint32_t& size, const uint32_t& n,
                          const uint32_t* const& lookups) {
  const auto strings = static_cast<uint32_t>((n + level_huffman_string - 1) / level_huffman_string);
  const uint32_t head = 2 * (strings - 1);
  if (size < head || size > level_huffman_body_bound(level_block)) return false;
  typename Block::template each<uint32_t> bad;
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < level_lookups; i += Block::lanes) s.place[i] = lookups[i];
  });
  b.phase([&](unsigned lane) {
    bad[lane] = 0;
    if (lane >= strings) return;
    const auto length_of = [&](uint32_t j) { return bits_at(s.body, 16 * j, 16); };
    uint32_t at = head;
    for (uint32_t j = 0; j < lane; ++j) at += length_of(j);
    const uint32_t length = lane + 1 < strings ? length_of(lane) : size - at;
    bad[lane] = 1;
    if (at > size || length > size - at) return;
    const uint32_t first = lane * static_cast<uint32_t>(level_huffman_string), begin = 8 * at;
    const uint32_t last = n - first < level_huffman_string ? n : first + static_cast<uint32_t>(level_huffman_string);
    uint32_t bit = begin;
    for (uint32_t i = first; i < last;) {
      const uint32_t entry = s.place[bits_at(s.body, bit, level_huffman_bits_max)];
      const uint32_t one = entry & 15, two = entry >> 4 & 15, three = entry >> 8 & 15;
      s.level[i++] = entry >> 12 & 63;
      uint32_t taken = one;
      if (two && i < last) {
        s.level[i++] = entry >> 18 & 63;
        taken = two;
        if (three && i < last) {
          s.level[i++] = entry >> 24 & 63;
          taken = three;
        }
      }
      bit += taken;
    }
    const uint32_t used = (bit - begin + 7) / 8;
    bad[lane] = used != length || (bit % 8 && bits_at(s.body, bit, 8 - bit % 8));
  });
  return b.max(bad) == 0;
}

// Where a block's body is, and its code; sound: it is in the payload.
struct level_place {
  uint64_t at;
  uint32_t size, code;
  bool sound;

  // `in`, `size`: the payload, whose head open_table has read; entries: its table, of several blocks.
  DR_HD static level_place of(const uint8_t* in, uint64_t size, uint64_t entries, const table_source& source,
                              const uint64_t* starts, uint32_t block, uint64_t blocks) {
    uint64_t at = source.at, length = size - at;
    uint32_t code = source.code;
    if (blocks > 1) {
      const bool huffman = source.huffman;
      const uint8_t* const entry = in + entries + (huffman ? 2 : 4) * uint64_t{block};
      at = starts[block];
      code = huffman ? 0 : load_u16(entry);
      length = load_u16(entry + (huffman ? 0 : 2));
    }
    const bool sound = length <= level_body_max && at <= size && length <= size - at && code <= level_code_max;
    return {at, static_cast<uint32_t>(length), code, sound};
  }
};

template <class Block>
DR_HD void load_level_body(Block& b, level_decode_shared& s, const uint8_t* const& in, const level_place& from) {
  b.phase([&](unsigned lane) { load_string(in + from.at, from.size, s.body, lane, Block::lanes); });
}

// n levels of a block that is neither raw nor by Huffman, to s.level. False if they are corrupt.
template <class Block>
DR_HD bool decode_levels(Block& b, level_decode_shared& s, const uint8_t* const& in, const level_place& from,
                         const uint32_t& n) {
  load_level_body(b, s, in, from);
  const uint32_t half = from.code / 2;
  if (from.code % 2) return decode_runs(b, s, from.size, n, half);
  const level_code by = level_code::of(half);
  return decode_split(b, s, from.size, n, by);
}

// n levels of a table of `count`, to s.level. False if they are corrupt.
template <class Block>
DR_HD bool decode_table_block(Block& b, level_decode_shared& s, const uint8_t* const& in, const level_place& from,
                              const table_source& source, const uint32_t& n, const uint32_t& count) {
  if (!from.sound) return false;
  if (source.huffman) {
    const uint32_t* const lookups = source.lookups;
    load_level_body(b, s, in, from);
    return decode_huffman(b, s, from.size, n, lookups);
  }
  if (from.code == raw_block || !decode_levels(b, s, in, from, n)) return false;
  typename Block::template each<uint32_t> bad;
  b.phase([&](unsigned lane) {
    bad[lane] = 0;
    for (uint32_t i = lane; i < n; i += Block::lanes) bad[lane] |= s.level[i] >= count;
  });
  return b.max(bad) == 0;
}

}  // namespace dr
