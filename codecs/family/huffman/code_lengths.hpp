// Lengths of a prefix code for symbols of known counts: as few bits as any code whose words are no longer than a limit.
// (One lane of a GPU's block finds them, too: the memory is the caller's.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

// Symbols that occur, from the rarest on; equal counts by symbol.
template <unsigned symbols_max>
struct huffman_leaves {
  uint64_t keys[symbols_max];  // count << 8 | symbol, ascending
  unsigned size;

  DR_HD uint64_t count(unsigned i) const { return keys[i] >> 8; }
  DR_HD uint8_t symbol(unsigned i) const { return static_cast<uint8_t>(keys[i]); }
};
template <unsigned symbols_max>
struct huffman_tree {
  uint64_t sums[symbols_max];  // of inner nodes
  uint16_t parent[2 * symbols_max];
  uint8_t depth[2 * symbols_max];
};
template <unsigned symbols_max>
struct huffman_packages {
  static constexpr unsigned rows = 16;  // bits_max <= rows
  uint64_t packages[symbols_max], list[2 * symbols_max];
  bool single[rows][2 * symbols_max];
};

// Package-merge (Larmore, Hirschberg 1990): counts that are equal before packages.
template <unsigned symbols_max>
DR_HD void huffman_package_merge(const huffman_leaves<symbols_max>& leaves, unsigned bits_max, uint8_t* lengths,
                                 huffman_packages<symbols_max>& room) {
  unsigned package_count = 0;
  for (unsigned row = 0; row < bits_max; ++row) {
    unsigned size = 0, l = 0, p = 0;
    while (l < leaves.size || p < package_count) {
      const bool take = p == package_count || (l < leaves.size && leaves.count(l) <= room.packages[p]);
      room.single[row][size] = take;
      room.list[size++] = take ? leaves.count(l++) : room.packages[p++];
    }
    package_count = size / 2;
    for (unsigned i = 0; i < package_count; ++i) room.packages[i] = room.list[2 * i] + room.list[2 * i + 1];
  }
  for (unsigned i = 0; i < leaves.size; ++i) lengths[leaves.symbol(i)] = 0;
  // Uses the first 2n - 2 of the last list; a package among them uses two of the previous list.
  for (unsigned row = bits_max, used = 2 * leaves.size - 2; row-- > 0 && used;) {
    unsigned singles = 0;
    for (unsigned i = 0; i < used; ++i) singles += room.single[row][i];
    for (unsigned i = 0; i < singles; ++i) ++lengths[leaves.symbol(i)];
    used = 2 * (used - singles);
  }
}

// Huffman's lengths (1952) of symbols whose lengths are 0. False if there are two symbols or more and one has a longer
// word than bits_max: then there are none yet.
template <unsigned symbols_max>
DR_HD bool huffman_short_lengths(const huffman_leaves<symbols_max>& leaves, unsigned bits_max, uint8_t* lengths,
                                 huffman_tree<symbols_max>& tree) {
  const unsigned used = leaves.size;
  if (used < 2) {
    const unsigned one = used ? leaves.symbol(0) : 0;
    lengths[one] = lengths[one ? 0 : 1] = 1;
    return true;
  }
  // Leaves and inner nodes are both made in ascending order: the two lightest are at the heads of two queues.
  unsigned leaf = 0, inner = 0, nodes = 0;
  const auto lightest = [&](uint64_t& sum) {
    const bool is_leaf = leaf < used && (inner == nodes || leaves.count(leaf) <= tree.sums[inner]);
    sum += is_leaf ? leaves.count(leaf) : tree.sums[inner];
    return is_leaf ? leaf++ : used + inner++;
  };
  while (nodes + 1 < used) {
    uint64_t sum = 0;
    const unsigned a = lightest(sum), b = lightest(sum);
    tree.parent[a] = tree.parent[b] = static_cast<uint16_t>(used + nodes);
    tree.sums[nodes++] = sum;
  }
  tree.depth[used + nodes - 1] = 0;
  for (unsigned i = used + nodes - 1; i-- > 0;) tree.depth[i] = static_cast<uint8_t>(tree.depth[tree.parent[i]] + 1);
  if (tree.depth[0] > bits_max) return false;  // the rarest symbol's is the longest
  for (unsigned i = 0; i < used; ++i) lengths[leaves.symbol(i)] = tree.depth[i];
  return true;
}

//   counts [n], 2 <= n <= symbols_max <= 256, their sum below 2^55     bits_max <= 16, or above any length
//   lengths [n]: of a complete code, at most bits_max; 0 for symbols that do not occur
// Huffman's lengths, and where one is above bits_max those of package-merge, which are the same where none is.
// Ties: of equal counts the smaller symbol's is the lower, and a symbol's is lower than an equal sum, which keeps the
// longest word short. A code has at least two words: a lone symbol and the smallest other have one bit.
template <unsigned symbols_max, class Count>
void huffman_code_lengths(const Count* counts, unsigned n, unsigned bits_max, uint8_t* lengths) {
  static_assert(symbols_max <= 256);
  huffman_leaves<symbols_max> leaves;
  leaves.size = 0;
  for (unsigned i = 0; i < n; ++i)
    if (counts[i]) leaves.keys[leaves.size++] = uint64_t{counts[i]} << 8 | i;
  std::sort(leaves.keys, leaves.keys + leaves.size);
  std::fill(lengths, lengths + n, uint8_t{0});
  huffman_tree<symbols_max> tree;
  if (huffman_short_lengths(leaves, bits_max, lengths, tree)) return;
  [&]() __attribute__((noinline)) {  // (it needs more stack)
    huffman_packages<symbols_max> room;
    huffman_package_merge(leaves, bits_max, lengths, room);
  }
  ();
}

}  // namespace dr
