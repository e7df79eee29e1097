// Coded levels of a table on a GPU: the choice of a code, which one block of lanes makes for a job, and bodies, of which
// a block of lanes makes one of 4096 levels. Positions come from prefix sums (reference: table_levels.cpp).
#pragma once

#include <cstdint>

#include "codecs/family/huffman/code_lengths.hpp"
#include "codecs/family/levels/table_choice.hpp"
#include "primitive/block.hpp"
#include "primitive/divisor.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_bits.hpp"

namespace dr {

inline constexpr unsigned table_lanes = 256;
inline constexpr unsigned lane_levels_max = level_block / table_lanes;  // consecutive levels of a lane
static_assert(lane_levels_max == sizeof(four_words));
static_assert(level_huffman_string % lane_levels_max == 0);

// ---- The choice of a code ----------------------------------------------------------------------------------

struct table_code {
  uint32_t huffman;
  uint16_t words[table_levels_max];
  uint8_t lengths[table_levels_max];
};

struct table_choice_shared {
  uint64_t key[table_levels_max];
  huffman_leaves<table_levels_max> leaves;
  huffman_tree<table_levels_max> tree;
  huffman_packages<table_levels_max> packages;
  uint8_t length[table_levels_max];
};

// counts: of the sampled levels among n, all below `levels`, at least 2. The same as table_coding_of.
template <class Block>
DR_HD void choose_table_code(Block& b, table_choice_shared& s, const uint32_t* counts, const uint32_t& levels,
                             const uint64_t& n, table_code& to) {
  const level_sample sample = level_sample::of(n);
  typename Block::template each<uint32_t> count;
  typename Block::template each<uint64_t> part;
  b.phase([&](unsigned lane) {
    count[lane] = lane < levels ? counts[lane] : 0;
    part[lane] = uint64_t{lane} * count[lane];
  });
  const uint64_t sum = b.sum(part);
  const level_code code = level_code::of(level_divisor(sum, sample.seen));
  b.phase([&](unsigned lane) { part[lane] = uint64_t{count[lane]} * code.bits(lane); });
  const uint64_t golomb = b.sum(part);

  b.phase([&](unsigned lane) {
    if (lane >= levels) return;
    if (sample.is_part() && count[lane] == 0) count[lane] = 1;
    s.key[lane] = count[lane] ? uint64_t{count[lane]} << 8 | lane : ~uint64_t{0};
    s.length[lane] = 0;
  });
  b.phase([&](unsigned lane) {
    if (lane >= levels) return;
    uint32_t before = 0, all = 0;
    for (uint32_t i = 0; i < levels; ++i) {
      before += s.key[i] < s.key[lane];
      all += s.key[i] != ~uint64_t{0};
    }
    if (count[lane]) s.leaves.keys[before] = s.key[lane];
    if (lane == 0) s.leaves.size = all;
  });
  b.phase([&](unsigned lane) {
    if (lane == 0 && !huffman_short_lengths(s.leaves, level_huffman_bits_max, s.length, s.tree))
      huffman_package_merge(s.leaves, level_huffman_bits_max, s.length, s.packages);
  });
  b.phase([&](unsigned lane) { part[lane] = lane < levels ? uint64_t{count[lane]} * s.length[lane] : 0; });
  const uint64_t huffman = level_huffman_head_bits(levels, sample.seen, n) + b.sum(part);
  b.phase([&](unsigned lane) {
    if (lane == 0) to.huffman = huffman < level_bits(golomb, sample.seen, sum);
    if (lane >= table_levels_max) return;
    const unsigned own = lane < levels ? s.length[lane] : 0;
    uint32_t word = 0;
    for (uint32_t i = 0; i < levels; ++i) {
      const unsigned other = s.length[i];
      if (other && other < own) word += 1u << (own - other);
      word += other == own && i < lane;
    }
    to.lengths[lane] = static_cast<uint8_t>(own);
    to.words[lane] = own ? level_huffman_word(word, own) : uint16_t{0};
  });
}

// ---- Bodies ------------------------------------------------------------------------------------------------

struct lane_levels {
  four_words bytes;

  DR_HD uint32_t operator[](unsigned j) const { return bytes.of[j / 4] >> (j % 4 * 8) & 0xff; }
};

struct table_encode_shared {
  // Huffman's bodies are the longest: by split Golomb a level below 64 has at most log2(mean + 1) + 2.92 bits.
  static constexpr uint32_t words = static_cast<uint32_t>((level_huffman_body_bound(level_block) + 3) / 4);
  alignas(16) uint32_t body[words + 2];  // and a word that is read after it
  uint16_t unit[level_block / 2];        // runs: the levels that units fall on
  uint16_t word[table_levels_max];
  uint32_t begin[level_huffman_strings_max + 1];  // Huffman: bits before a string, without padding
};

// Numbers by split Golomb; number(lane, j) for j < lane_levels_max: number lane · lane_levels_max + j of `count`.
struct split_body {
  uint32_t count;
  divisor by;
  uint32_t low_bits, short_low;     // short_low 1 for M = 1: no remainder has an extra bit
  uint32_t low, unary, extra_bits;  // bytes of the first two strings

  DR_HD static split_body of(uint32_t count, const level_code& code) {
    return {count, divisor::of(code.divisor), code.low_bits, code.divisor == 1 ? 1 : code.short_low, 0, 0, 0};
  }
  DR_HD uint32_t size() const { return low + unary + (extra_bits + 7) / 8; }

  // Sets costs to the bits before a lane's: quotients and, from bit 32 on, extras; and the size.
  template <class Block, class Number>
  DR_HD void measure(Block& b, typename Block::template each<uint64_t>& costs, const Number& number) {
    b.phase([&](unsigned lane) {
      uint64_t sum = 0;
#pragma unroll
      for (unsigned j = 0; j < lane_levels_max; ++j) {
        if (lane * lane_levels_max + j >= count) continue;
        const uint32_t x = number(lane, j), q = by.quotient(x);
        sum += q + (uint64_t{x - q * by.value >= short_low} << 32);
      }
      costs[lane] = sum;
    });
    const uint64_t all = b.exclusive_sum(costs);
    low = (count * low_bits + 7) / 8;
    unary = (count + static_cast<uint32_t>(all) + 7) / 8;
    extra_bits = static_cast<uint32_t>(all >> 32);
  }
  // Behind measure, into zeroed words.
  template <class Block, class Number>
  DR_HD void write(Block& b, const typename Block::template each<uint64_t>& costs, const Number& number,
                   uint32_t* words, uint32_t words_end) const {
    b.phase([&](unsigned lane) {
      const uint32_t first = lane * lane_levels_max;
      if (first >= count) return;
      const auto quotients = static_cast<uint32_t>(costs[lane]), before = static_cast<uint32_t>(costs[lane] >> 32);
      tile_bits lows(words, words_end, first * low_bits);
      tile_bits ones(words, words_end, 8 * low + first + quotients);
      uint32_t extra = 0, extras = 0;
#pragma unroll
      for (unsigned j = 0; j < lane_levels_max; ++j) {
        if (first + j >= count) continue;
        const uint32_t x = number(lane, j), q = by.quotient(x), r = x - q * by.value, sum = r + short_low;
        const bool is_long = r >= short_low;
        lows.put(is_long ? sum >> 1 : r, low_bits);
        ones.put_unary(q);
        if (is_long) extra |= (sum & 1) << extras++;
      }
      lows.finish();
      ones.finish();
      tile_bits extra_string(words, words_end, 8 * (low + unary) + before);
      extra_string.put(extra, extras);
      extra_string.finish();
    });
  }
};

// Of runs: how many levels on from the one before it a unit falls.
DR_HD inline uint32_t level_gap(const uint16_t* unit, unsigned lane, unsigned j) {
  const uint32_t i = lane * lane_levels_max + j;
  return unit[i] - (i ? unit[i - 1] : 0u);
}

// How a block of levels is coded (level_blocks.hpp).
struct level_body {
  uint32_t size, code;
  split_body by;

  DR_HD bool has_runs() const { return code % 2; }
};

// Of n levels, 16 a lane: level(lane, j), 0 from the n-th on. costs: for put_level_body. unit: room for level_block / 2.
template <class Block, class Level>
DR_HD level_body choose_level_body(Block& b, uint16_t* unit, typename Block::template each<uint64_t>& costs,
                                   const uint32_t& n, const Level& level) {
  typename Block::template each<uint32_t> units;
  b.phase([&](unsigned lane) {
    uint32_t own = 0;
#pragma unroll
    for (unsigned j = 0; j < lane_levels_max; ++j) own += level(lane, j);
    units[lane] = own;
  });
  const uint32_t sum = b.exclusive_sum(units);
  if (2 * sum < n) {
    level_body runs{0, 2 * sum + 1, split_body::of(sum, level_code::of(1))};
    if (sum == 0) return runs;
    b.phase([&](unsigned lane) {
      uint32_t at = units[lane];
#pragma unroll
      for (unsigned j = 0; j < lane_levels_max; ++j)
        for (uint32_t more = level(lane, j); more > 0 && at < level_block / 2; --more)
          unit[at++] = static_cast<uint16_t>(lane * lane_levels_max + j);
    });
    runs.by = split_body::of(sum, runs_code(n, sum));
    runs.by.measure(b, costs, [&](unsigned lane, unsigned j) { return level_gap(unit, lane, j); });
    runs.size = runs.by.size();
    if (runs.size <= (n + sum) / 8) return runs;
  }
  const uint32_t m = level_divisor(sum, n);
  level_body golomb{0, 2 * m, split_body::of(n, level_code::of(m))};
  golomb.by.measure(b, costs, level);
  golomb.size = golomb.by.size();
  return golomb;
}

// Behind choose_level_body, into zeroed words.
template <class Block, class Level>
DR_HD void put_level_body(Block& b, const level_body& body, uint16_t* unit,
                          const typename Block::template each<uint64_t>& costs, const Level& level, uint32_t* words,
                          uint32_t words_end) {
  if (!body.has_runs())
    body.by.write(b, costs, level, words, words_end);
  else if (body.size > 0)
    body.by.write(
        b, costs, [&](unsigned lane, unsigned j) { return level_gap(unit, lane, j); }, words, words_end);
}

// The same by Huffman, into zeroed words, by s.word. Returns its bytes.
template <class Block>
DR_HD uint32_t make_huffman_body(Block& b, table_encode_shared& s,
                                 const typename Block::template each<lane_levels>& levels, const uint32_t& n) {
  constexpr uint32_t string_lanes = level_huffman_string / lane_levels_max;
  const uint32_t strings = static_cast<uint32_t>((n + level_huffman_string - 1) / level_huffman_string);
  typename Block::template each<uint32_t> bits;
  b.phase([&](unsigned lane) {
    uint32_t own = 0;
#pragma unroll
    for (unsigned j = 0; j < lane_levels_max; ++j)
      if (lane * lane_levels_max + j < n) own += s.word[levels[lane][j] % table_levels_max] >> 12u;
    bits[lane] = own;
  });
  const uint32_t all = b.exclusive_sum(bits);
  b.phase([&](unsigned lane) {
    if (lane % string_lanes == 0) s.begin[lane / string_lanes] = bits[lane];
    if (lane == 0) s.begin[level_huffman_strings_max] = all;
  });
  const auto bytes = [&](uint32_t string) { return (s.begin[string + 1] - s.begin[string] + 7) / 8; };
  const auto size = b.template once<uint32_t>([&] {
    uint32_t bytes_of_all = 2 * (strings - 1);
    for (uint32_t i = 0; i < strings; ++i) bytes_of_all += bytes(i);
    return bytes_of_all;
  });
  b.phase([&](unsigned lane) {
    const uint32_t own = lane / string_lanes;
    if (own >= strings) return;
    uint32_t at = 2 * (strings - 1);
    for (uint32_t i = 0; i < own; ++i) at += bytes(i);
    if (lane % string_lanes == 0 && own + 1 < strings) {
      tile_bits size_string(s.body, table_encode_shared::words, 16 * own);
      size_string.put(bytes(own), 16);
      size_string.finish();
    }
    tile_bits out(s.body, table_encode_shared::words, 8 * at + bits[lane] - s.begin[own]);
#pragma unroll
    for (unsigned j = 0; j < lane_levels_max; ++j) {
      if (lane * lane_levels_max + j >= n) continue;
      const uint32_t word = s.word[levels[lane][j] % table_levels_max];
      out.put(word & 0xfff, word >> 12);
    }
    out.finish();
  });
  return size;
}

// Where a job's coded levels go, and its blocks' states of look-back, all zero.
struct level_target {
  uint8_t* out;    // the payload
  uint64_t table;  // of entries in it or, of a lone block, its body's place
  uint64_t bound;  // of the payload's bytes
  uint64_t n;
  uint64_t* state;

  DR_HD uint32_t blocks() const { return static_cast<uint32_t>(level_blocks(n)); }
};

// A block's entry in front of the bodies: of several blocks `entry` bytes in the table, of a lone one a varint of
// `lone` bytes, 0 if it has none. Then its body's place.
struct level_entry {
  uint32_t entry, lone;
  uint64_t bytes;  // of an entry in the table; of a varint the lower 16 bits
  uint64_t at;

  // With a code that says how the block is coded (level_blocks.hpp), or without.
  template <class Block>
  DR_HD static level_entry of(Block& b, const level_target& to, uint32_t block, uint32_t size, bool has_code,
                              uint32_t code) {
    const uint32_t blocks = to.blocks(), entry = has_code ? 4 : 2;
    const uint32_t lone = !has_code ? 0 : code < 0x80 ? 1 : 2;  // codes are below 2^14
    const uint64_t at =
        blocks == 1 ? to.table + lone : to.table + uint64_t{entry} * blocks + lookback(b, to.state, block, size);
    return {entry, lone, has_code ? code | uint64_t{size} << 16 : size, at};
  }
  DR_HD void put(const level_target& to, uint32_t block, unsigned lane) const {
    if (to.blocks() > 1) {
      if (lane < entry) to.out[to.table + uint64_t{entry} * block + lane] = static_cast<uint8_t>(bytes >> (8 * lane));
    } else if (lane == 0 && lone > 0) {
      put_varint(to.out + to.table, bytes & 0xffff);
    }
  }
};

// Codes block `block`, n levels of a table of `count`; to.table: where the coded levels begin. s.body: zeros. s.word: the
// words of Huffman's code. Returns the payload's bytes up to the end of its body.
template <class Block>
DR_HD uint64_t put_table_block(Block& b, table_encode_shared& s, level_target to, const uint32_t& block,
                               const uint32_t& n, const typename Block::template each<lane_levels>& levels,
                               const table_code& code, const uint32_t& count) {
  const bool huffman = code.huffman;
  const uint32_t lengths = huffman ? (count + 1) / 2 : 0;
  const uint64_t lengths_at = to.table;
  to.table += lengths;
  level_body body{0, 0, split_body::of(0, level_code::of(1))};
  if (huffman) {
    body.size = make_huffman_body(b, s, levels, n);
  } else {
    typename Block::template each<uint64_t> costs;
    const auto level = [&](unsigned lane, unsigned j) { return levels[lane][j]; };
    body = choose_level_body(b, s.unit, costs, n, level);
    put_level_body(b, body, s.unit, costs, level, s.body, table_encode_shared::words);
  }
  const level_entry entry = level_entry::of(b, to, block, body.size, !huffman, body.code);
  b.phase([&](unsigned lane) {
    if (block == 0 && lane < lengths)
      to.out[lengths_at + lane] = static_cast<uint8_t>(code.lengths[2 * lane] | code.lengths[2 * lane + 1] << 4);
    entry.put(to, block, lane);
    if (entry.at + body.size <= to.bound) put_bytes(s.body, body.size, to.out + entry.at, lane, Block::lanes);
  });
  return entry.at + body.size;
}

// The size of a job without values. (A kernel beside this one may raise the job's fault at any time: other blocks, which have
// not seen it, look back at this one.)
template <class Block>
DR_HD void put_no_values(Block& b, const tile_job& job, uint64_t* const& state, const uint32_t& block) {
  const uint64_t tiles = level_blocks(uint64_t{job.count_max} * job.width);
  b.phase([&](unsigned lane) {
    if (lane != 0) return;
    if (block == 0 && job.fault->code == DR_OK) *job.out_size = 0;
    if (tiles > 1) store_release(state + block, uint64_t{1});
  });
}

}  // namespace dr
