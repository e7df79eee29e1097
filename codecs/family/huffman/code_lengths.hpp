// Lengths of a prefix code for symbols of known counts: as few bits as any code whose words are no longer than a limit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dr {

// Symbols that occur, from the rarest on; equal counts by symbol.
template <unsigned symbols_max>
struct huffman_leaves {
  uint64_t keys[symbols_max];  // count << 8 | symbol
  unsigned size = 0;

  template <class Count>
  huffman_leaves(const Count* counts, unsigned n) {
    for (unsigned i = 0; i < n; ++i)
      if (counts[i]) keys[size++] = uint64_t{counts[i]} << 8 | i;
    std::sort(keys, keys + size);
  }
  uint64_t count(unsigned i) const { return keys[i] >> 8; }
  uint8_t symbol(unsigned i) const { return static_cast<uint8_t>(keys[i]); }
};

// Package-merge (Larmore, Hirschberg 1990): counts that are equal before packages.
template <unsigned symbols_max>
[[gnu::noinline]] void huffman_package_merge(const huffman_leaves<symbols_max>& leaves, unsigned bits_max,
                                             uint8_t* lengths) {
  constexpr unsigned rows = 16;  // bits_max <= rows
  uint64_t packages[symbols_max];
  unsigned package_count = 0;
  bool single[rows][2 * symbols_max];
  for (unsigned row = 0; row < bits_max; ++row) {
    uint64_t list[2 * symbols_max];
    unsigned size = 0, l = 0, p = 0;
    while (l < leaves.size || p < package_count) {
      const bool take = p == package_count || (l < leaves.size && leaves.count(l) <= packages[p]);
      single[row][size] = take;
      list[size++] = take ? leaves.count(l++) : packages[p++];
    }
    package_count = size / 2;
    for (unsigned i = 0; i < package_count; ++i) packages[i] = list[2 * i] + list[2 * i + 1];
  }
  for (unsigned i = 0; i < leaves.size; ++i) lengths[leaves.symbol(i)] = 0;
  // Uses the first 2n - 2 of the last list; a package among them uses two of the previous list.
  for (unsigned row = bits_max, used = 2 * leaves.size - 2; row-- > 0 && used;) {
    unsigned singles = 0;
    for (unsigned i = 0; i < used; ++i) singles += single[row][i];
    for (unsigned i = 0; i < singles; ++i) ++lengths[leaves.symbol(i)];
    used = 2 * (used - singles);
  }
}

//   counts [n], 2 <= n <= symbols_max <= 256, their sum below 2^55     bits_max <= 16, or above any length
//   lengths [n]: of a complete code, at most bits_max; 0 for symbols that do not occur
// Huffman's lengths (1952), and where one is above bits_max those of package-merge, which are the same where none is.
// Ties: of equal counts the smaller symbol's is the lower, and a symbol's is lower than an equal sum, which keeps the
// longest word short. A code has at least two words: a lone symbol and the smallest other have one bit.
template <unsigned symbols_max, class Count>
void huffman_code_lengths(const Count* counts, unsigned n, unsigned bits_max, uint8_t* lengths) {
  static_assert(symbols_max <= 256);
  const huffman_leaves<symbols_max> leaves(counts, n);
  const unsigned used = leaves.size;
  std::fill(lengths, lengths + n, uint8_t{0});
  if (used < 2) {
    const unsigned one = used ? leaves.symbol(0) : 0;
    lengths[one] = lengths[one ? 0 : 1] = 1;
    return;
  }
  uint64_t sums[symbols_max];
  uint16_t parent[2 * symbols_max];
  uint8_t depth[2 * symbols_max];
  // Leaves and inner nodes are both made in ascending order: the two lightest are at the heads of two queues.
  unsigned leaf = 0, inner = 0, nodes = 0;
  const auto lightest = [&](uint64_t& sum) {
    const bool is_leaf = leaf < used && (inner == nodes || leaves.count(leaf) <= sums[inner]);
    sum += is_leaf ? leaves.count(leaf) : sums[inner];
    return is_leaf ? leaf++ : used + inner++;
  };
  while (nodes + 1 < used) {
    uint64_t sum = 0;
    const unsigned a = lightest(sum), b = lightest(sum);
    parent[a] = parent[b] = static_cast<uint16_t>(used + nodes);
    sums[nodes++] = sum;
  }
  unsigned longest = 0;
  depth[used + nodes - 1] = 0;
  for (unsigned i = used + nodes - 1; i-- > 0;) depth[i] = static_cast<uint8_t>(depth[parent[i]] + 1);
  longest = depth[0];  // the rarest symbol's
  if (longest > bits_max) return huffman_package_merge(leaves, bits_max, lengths);
  for (unsigned i = 0; i < used; ++i) lengths[leaves.symbol(i)] = depth[i];
}

}  // namespace dr
