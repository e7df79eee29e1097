// Quantisers whose levels are a table: magnitudes to levels by ascending bounds, levels to numbers by a table, at most
// 64 of them; and the coded levels of a payload. (Layout: codecs/value/log_quant/SPEC.md.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/family/huffman/level_huffman.hpp"
#include "codecs/family/levels/level_blocks.hpp"
#include "codecs/family/levels/table_choice.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// ---- Values and levels -----------------------------------------------------------------------------------

// bounds[j]: bits of the least magnitude above level j; ascending, all ones if there is no such level.
struct level_bounds {
  alignas(64) uint32_t of[table_levels_max];
  unsigned count;  // of levels, rounded up to a power of two
};

//   values [n], n <= level_block     levels [n]     signs: ⌈n / 8⌉ bytes, low bit first, zero-padded
inline void table_quantise_scalar(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels,
                                  uint8_t* signs) {
  std::memset(signs, 0, ceil_div(n, 8));
  for (size_t i = 0; i < n; ++i) {
    signs[i / 8] = static_cast<uint8_t>(signs[i / 8] | values[i] >> 31 << i % 8);
    const uint32_t m = values[i] & f32_type::magnitude_mask;
    unsigned level = 0;
    for (unsigned half = bounds.count / 2; half > 0; half /= 2) level += m >= bounds.of[level + half - 1] ? half : 0;
    levels[i] = static_cast<uint8_t>(level);
  }
}

struct level_table {
  alignas(64) uint32_t of[table_levels_max];  // float bits without sign
  unsigned count;                             // of levels; beyond them anything
};
inline void table_restore_scalar(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                                 uint32_t* values) {
  for (size_t i = 0; i < n; ++i)
    values[i] = table.of[levels[i] % table_levels_max] | uint32_t{signs[i / 8]} >> i % 8 << 31;
}

void table_quantise_avx2(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels, uint8_t* signs);
void table_restore_avx2(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                        uint32_t* values);
void table_quantise_avx512(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels,
                           uint8_t* signs);
void table_restore_avx512(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                          uint32_t* values);
void table_quantise_neon(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels, uint8_t* signs);
void table_restore_neon(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                        uint32_t* values);
inline constexpr cpu_table<decltype(&table_quantise_scalar)> table_quantise{
    table_quantise_scalar, on_x86(table_quantise_avx2), on_x86(table_quantise_avx512), on_arm(table_quantise_neon)};
inline constexpr cpu_table<decltype(&table_restore_scalar)> table_restore{
    table_restore_scalar, on_x86(table_restore_avx2), on_x86(table_restore_avx512), on_arm(table_restore_neon)};

// ---- Coded levels ----------------------------------------------------------------------------------------

// With Huffman: lengths, 4 bits per level, low first, padded; sizes u16 of the blocks' bodies if there are several;
// bodies. Else what level_writer writes.
DR_HD constexpr uint64_t table_coded_bound(uint64_t n, unsigned levels) {
  // Golomb's: an entry of 4 bytes and at most log2(mean + 1) + 2.92 bits per level (golomb_bound's proof), three
  // paddings. Huffman is taken only where it promises less than that, of which its choice knows a sample: 11 bits at
  // most.
  return ceil_div(levels, 2) + (n * level_huffman_bits_max + 7) / 8 +
         level_blocks(n) * (4 + 3 * level_huffman_strings_max);
}

struct table_coding {
  bool huffman;
  uint8_t lengths[level_huffman_alphabet];
};
// Chooses the shorter form, and code lengths, from a sample of levels [n], all below `count`.
table_coding table_coding_of(const uint8_t* levels, uint64_t n, unsigned count);
// Returns the end. At most table_coded_bound bytes.
uint8_t* table_encode(const uint8_t* levels, uint64_t n, unsigned count, const table_coding& coding, uint8_t* out);

// Calls f(first, length, levels) for pieces of n coded levels that end with the payload; false, and *where in it, if
// they are corrupt. A level that is not below `count` is.
template <class F>
bool table_decode(const uint8_t* payload, const uint8_t* from, const uint8_t* end, uint64_t n, unsigned count,
                  bool huffman, uint64_t* where, F&& f);

// ---- Inline parts of the above ---------------------------------------------------------------------------

template <class F>
bool table_decode(const uint8_t* payload, const uint8_t* from, const uint8_t* end, uint64_t n, unsigned count,
                  bool huffman, uint64_t* where, F&& f) {
  const auto at = [&](const uint8_t* byte) { *where = static_cast<uint64_t>(byte - payload); };
  const auto length_of = [&](uint64_t first) {
    return static_cast<size_t>(n - first < level_block ? n - first : level_block);
  };
  at(from);
  if (!huffman) {
    level_reader reader(from, end, n);
    uint16_t wide[level_block + level_slack];
    uint8_t levels[level_block];
    for (uint64_t first = 0; first < n; first += level_block) {
      at(reader.entry());
      if (!reader.next()) return false;
      at(reader.body());
      const size_t length = length_of(first);
      if (!reader.levels(length, wide)) return false;
      uint16_t largest = 0;
      for (size_t i = 0; i < length; ++i) {
        largest = wide[i] > largest ? wide[i] : largest;
        levels[i] = static_cast<uint8_t>(wide[i]);
      }
      if (largest >= count) return false;
      f(first, length, levels);
    }
    return reader.at_end();
  }
  const size_t lengths_size = (count + 1) / 2;
  if (static_cast<uint64_t>(end - from) < lengths_size) return false;
  uint8_t lengths[level_huffman_alphabet + 1];
  for (size_t i = 0; i < lengths_size; ++i) {
    lengths[2 * i] = from[i] & 15;
    lengths[2 * i + 1] = from[i] >> 4;
  }
  for (unsigned i = 0; i < count; ++i)
    if (lengths[i] > level_huffman_bits_max) return false;
  level_huffman_code code;
  if ((count % 2 && lengths[count]) || !code.set(lengths, count)) return false;
  const bool several = n > level_block;
  level_huffman_table table;
  table.set(code, n);
  const uint8_t *size_at = from + lengths_size, *body = size_at;
  if (several) {
    if (static_cast<uint64_t>(end - body) / 2 < level_blocks(n)) return false;
    body += 2 * level_blocks(n);
  }
  uint8_t padded[level_body_max + level_slack], levels[level_huffman_strings_max * level_huffman_stride];
  for (uint64_t first = 0; first < n; first += level_block) {
    at(size_at);
    const auto rest = static_cast<size_t>(end - body);
    const size_t size = several ? load<uint16_t>(size_at) : rest, length = length_of(first);
    size_at += several ? 2 : 0;
    if (size > rest || size > level_huffman_body_bound(level_block)) return false;
    at(body);
    std::memcpy(padded, body, size);
    std::memset(padded + size, 0, level_huffman_slack);
    const size_t used = level_huffman_decode.best()(padded, size, length, table, levels);
    if (used == 0 || used != size) return false;
    for (size_t i = 0; i < length; i += level_huffman_string)
      f(first + i, length - i < level_huffman_string ? length - i : level_huffman_string,
        levels + i / level_huffman_string * level_huffman_stride);
    body += size;
  }
  return body == end;
}

}  // namespace dr
