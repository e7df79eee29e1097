// What became of words of a base, coded class by class of its magnitude. Layout: README.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "codecs/family/classes/classes.hpp"
#include "codecs/family/rans/rans.hpp"

namespace dr {

// The number that codes new relative to old, small for a small change: zigzag of the signed distance in the order of
// the type's numbers, or the bits that differ.
template <class Word>
struct ulp_change {
  using bits = typename Word::bits;
  DR_HD static uint64_t of(bits old, bits now) {
    const bits d = static_cast<bits>(Word::ordered(now) - Word::ordered(old));
    return static_cast<bits>(static_cast<bits>(d << 1) ^ all(static_cast<bits>(d >> (8 * sizeof(bits) - 1))));
  }
  DR_HD static bits apply(bits old, uint64_t z) {
    const auto d = static_cast<bits>(static_cast<bits>(z) >> 1 ^ all(z & 1));
    return Word::ordered(static_cast<bits>(Word::ordered(old) + d));
  }

 private:
  DR_HD static bits all(uint64_t bit) { return static_cast<bits>(bits{0} - static_cast<bits>(bit)); }
};
template <class Word>
struct xor_change {
  using bits = typename Word::bits;
  DR_HD static uint64_t of(bits old, bits now) { return static_cast<bits>(old ^ now); }
  DR_HD static bits apply(bits old, uint64_t z) { return static_cast<bits>(old ^ static_cast<bits>(z)); }
};

// Numbers become symbols: of 8 bits themselves; else the small ones, and the width of the others, whose bits below the
// highest one follow apart.
inline constexpr unsigned change_small = 14;
template <unsigned width>
struct change_symbols {
  static constexpr unsigned symbol_count = width == 8 ? 256 : change_small + width - 3;
  DR_HD static constexpr uint8_t of(uint64_t z) {
    return static_cast<uint8_t>(width == 8 || z < change_small ? z : change_small - 4 + bit_width(z));
  }
  // Bits apart of a symbol.
  DR_HD static constexpr unsigned extra(uint8_t symbol) {
    return width == 8 || symbol < change_small ? 0 : symbol - change_small + 3u;
  }
};

inline constexpr uint8_t change_raw = 0;  // in place of a number of classes: the words themselves follow

template <class Bits>
constexpr uint64_t changes_bound(uint64_t n) {
  return 1 + n * sizeof(Bits);
}

// Scratch of an encode or a decode of n words.
struct change_scratch {
  uint8_t *symbol, *of, *coded;  // [n], [n], rans_bound(n)
  rans_lookup* lookups;          // [classes_max]: of a decode

  static constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr uint64_t size(uint64_t n) {
    return 2 * aligned(n) + aligned(rans_bound(n)) + sizeof(rans_lookup) * classes_max;
  }
  static change_scratch at(std::byte* scratch, uint64_t n) {
    auto* const at = reinterpret_cast<uint8_t*>(scratch);
    return {at, at + aligned(n), at + 2 * aligned(n),
            reinterpret_cast<rans_lookup*>(at + 2 * aligned(n) + aligned(rans_bound(n)))};
  }
};

// Number of words that justify a class with its own table.
inline constexpr uint64_t change_classes_from = 512;
// Approximate number of words in the sample (every `stride`-th) that chooses classes.
inline constexpr uint64_t sampled_words = 16384;

// Rare symbols are not what classes differ in: those from here on count together.
inline constexpr unsigned change_looked_at = 24;
constexpr uint32_t change_groups_max(uint64_t n) { return n < 65536 ? 16 : 32; }
constexpr uint64_t change_stride(uint64_t n) { return n < 2 * sampled_words ? 1 : n / sampled_words; }
constexpr uint64_t change_class_cost(uint64_t stride) { return (uint64_t{8 * 16} << 16) / stride; }

template <unsigned symbol_count, class Bits>
class_list change_classes(const Bits* old, const uint8_t* symbol, uint64_t n) {
  if (n < change_classes_from) return {};
  const uint64_t stride = change_stride(n);
  uint32_t weight[256] = {};
  for (uint64_t i = 0; i < n; i += stride) ++weight[word_key(old[i])];
  const key_groups groups(weight, change_groups_max(n));
  constexpr unsigned looked_at = symbol_count < change_looked_at ? symbol_count : change_looked_at;
  uint32_t before[33][looked_at] = {};
  for (uint64_t i = 0; i < n; i += stride)
    ++before[groups.of[word_key(old[i])] + 1][symbol[i] < looked_at ? symbol[i] : looked_at - 1];
  for (uint32_t g = 0; g < groups.count; ++g)
    for (unsigned s = 0; s < looked_at; ++s) before[g + 1][s] += before[g][s];
  const auto cost = [&](uint32_t i, uint32_t j) {
    uint64_t all = 0, parts = 0;
    for (unsigned s = 0; s < looked_at; ++s) {
      const uint64_t count = before[j][s] - before[i][s];
      all += count;
      parts += x_log2_q16(count);
    }
    all = x_log2_q16(all);
    return all > parts ? all - parts : 0;
  };
  return choose_classes(groups.count, groups.begin.data(), change_class_cost(stride), cost);
}

// Writes the symbols of the words. Returns the number of bits outside the symbols.
template <class Change, class Bits = typename Change::bits>
uint64_t change_symbols_of(const Bits* old, const Bits* now, uint64_t n, uint8_t* symbol) {
  using symbols = change_symbols<8 * sizeof(Bits)>;
  // Nearly all are small: first a loop for vectors, of blocks; then one of words, in blocks that have a large one.
  constexpr uint64_t block = 256;
  uint64_t extra = 0;
  for (uint64_t at = 0; at < n; at += block) {
    const uint64_t end = at + block < n ? at + block : n;
    uint8_t large = 0;
    for (uint64_t i = at; i < end; ++i) {
      const auto z = static_cast<Bits>(Change::of(old[i], now[i]));
      symbol[i] = static_cast<uint8_t>(z);
      if constexpr (sizeof(Bits) > 1) large |= z >= change_small;
    }
    for (uint64_t i = at; large && i < end; ++i) {
      symbol[i] = symbols::of(Change::of(old[i], now[i]));
      extra += symbols::extra(symbol[i]);
    }
  }
  return extra;
}

// n >= 1 words, into changes_bound bytes. Returns the bytes written. given: the classes; nullptr: choose them.
template <class Change, class Bits = typename Change::bits>
uint64_t changes_encode(const Bits* old, const Bits* now, uint64_t n, const change_scratch& room, uint8_t* out,
                        const class_list* given = nullptr) {
  using symbols = change_symbols<8 * sizeof(Bits)>;
  const uint64_t extra = change_symbols_of<Change>(old, now, n, room.symbol);
  const class_list classes = given ? *given : change_classes<symbols::symbol_count>(old, room.symbol, n);
  const uint8_t* const of = classes.count > 1 ? room.of : nullptr;
  // Four counters of a symbol take turns: the next increment of the same one would wait for this one.
  uint32_t counted[4][classes_max][symbols::symbol_count] = {};
  if (of) {
    const auto of_key = classes.table();
    for (uint64_t i = 0; i < n; ++i) room.of[i] = of_key[word_key(old[i])];
    for (uint64_t i = 0; i < n; ++i) ++counted[i % 4][room.of[i]][room.symbol[i]];
  } else {
    for (uint64_t i = 0; i < n; ++i) ++counted[i % 4][0][room.symbol[i]];
  }
  auto& counts = counted[0];
  for (uint32_t c = 0; c < classes.count; ++c)
    for (unsigned s = 0; s < symbols::symbol_count; ++s)
      counts[c][s] += counted[1][c][s] + counted[2][c][s] + counted[3][c][s];
  rans_code codes[classes_max];
  uint8_t head[2 + classes_max * (1 + rans_table::size_max(symbols::symbol_count)) + 16];
  uint8_t* at = classes.put(head);
  for (uint32_t c = 0; c < classes.count; ++c) {
    // (A class of a threshold above which nothing changed has a table, too, of the symbol 0.)
    if (std::all_of(counts[c], counts[c] + symbols::symbol_count, [](uint32_t k) { return k == 0; })) counts[c][0] = 1;
    rans_table table;
    table.fit(counts[c], symbols::symbol_count);
    codes[c].set(table);
    at = table.put(at);
  }
  const uint8_t* const begin = rans_put(codes, room.symbol, of, n, room.coded);
  const auto coded = static_cast<uint64_t>(room.coded + rans_bound(n) - begin);
  if (extra) at = put_varint(at, coded);  // else it ends where the payload does: as the tables say
  const auto head_size = static_cast<uint64_t>(at - head);
  if (head_size + coded + ceil_div(extra, 8) >= changes_bound<Bits>(n)) {
    *out = change_raw;
    std::memcpy(out + 1, now, n * sizeof(Bits));
    return changes_bound<Bits>(n);
  }
  std::copy_n(head, head_size, out);
  std::copy_n(begin, coded, out + head_size);
  out += head_size + coded;
  bit_writer bits(out);
  for (uint64_t i = 0; extra && i < n; ++i)
    if (const unsigned width = symbols::extra(room.symbol[i])) {
      const uint64_t rest = Change::of(old[i], now[i]) & low_mask(width);
      bits.put(rest & 0xffffffff, std::min(width, 32u));
      if (width > 32) bits.put(rest >> 32, width - 32);
    }
  bits.finish();
  return head_size + coded + ceil_div(extra, 8);
}

// n >= 1 words from a payload. Returns false if it is corrupt.
template <class Change, class Bits = typename Change::bits>
bool changes_decode(const Bits* old, const uint8_t* in, uint64_t size, uint64_t n, const change_scratch& room,
                    Bits* now) {
  using symbols = change_symbols<8 * sizeof(Bits)>;
  const uint8_t* const end = in + size;
  if (size && *in == change_raw) {
    if (size != changes_bound<Bits>(n)) return false;
    std::memcpy(now, in + 1, n * sizeof(Bits));
    return true;
  }
  class_list classes;
  in = classes.get(in, end);
  if (!in) return false;
  bool apart = false;
  for (uint32_t c = 0; c < classes.count; ++c) {
    rans_table table;
    in = table.get(in, end, symbols::symbol_count);
    if (!in) return false;
    apart = apart || symbols::extra(static_cast<uint8_t>(table.symbols - 1));
    new (room.lookups + c) rans_lookup(table);
  }
  uint64_t coded = static_cast<uint64_t>(end - in);
  if (apart) {
    in = get_varint(in, end, coded);
    if (!in || coded > static_cast<uint64_t>(end - in)) return false;
  }
  if (classes.count > 1) {
    const auto of_key = classes.table();
    for (uint64_t i = 0; i < n; ++i) room.of[i] = of_key[word_key(old[i])];
  }
  if (!rans_get(room.lookups, classes.count > 1 ? room.of : nullptr, n, in, in + coded, room.symbol)) return false;
  in += coded;
  if (!apart) {
    for (uint64_t i = 0; i < n; ++i) now[i] = Change::apply(old[i], room.symbol[i]);
    return in == end;
  }
  uint64_t extra = 0;
  for (uint64_t i = 0; i < n; ++i) extra += symbols::extra(room.symbol[i]);
  if (ceil_div(extra, 8) != static_cast<uint64_t>(end - in) || !padding_is_zero(in, extra)) return false;
  bit_reader bits(in, extra);
  for (uint64_t i = 0; i < n; ++i) {
    uint64_t z = room.symbol[i];
    if (const unsigned width = symbols::extra(room.symbol[i])) {
      z = bits.get(std::min(width, 32u));
      if (width > 32) z |= bits.get(width - 32) << 32;
      z |= uint64_t{1} << width;
    }
    now[i] = Change::apply(old[i], z);
  }
  return true;
}

}  // namespace dr
