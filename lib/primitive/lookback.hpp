// Decoupled look-back (Merrill, Garland 2016): a running sum over tiles in one launch. Blocks draw tiles by ticket, so
// a block waits only for tiles whose blocks are running.
#pragma once

#include <cstdint>

#include "primitive/atomics.hpp"

namespace dr {

// The next tile of a launch; `ticket` is a word that was zero before it.
template <class Block>
DR_HD uint32_t take_tile(Block& b, uint32_t* ticket) {
  return b.template once<uint32_t>([&] { return atomic_add(ticket, 1u); });
}

// The sum of the tiles before `tile`; publishes this tile's sum. `state`: a word a tile, zero before the launch; sums
// are below 2^62. A word: bit 0: it is published; bit 1: it is the sum up to and including its tile, otherwise of its
// tile alone; the rest is the sum. All lanes call it and read one predecessor each. A block's earlier reads and writes
// are visible to its successors.
template <class Block>
DR_HD uint64_t lookback(Block& b, uint64_t* state, uint64_t tile, uint64_t own) {
  typename Block::template each<uint64_t> sum;
  typename Block::template each<uint32_t> complete;
  uint64_t before = 0;
  if (tile > 0) {
    b.phase([&](unsigned lane) {
      if (lane == 0) store_release(state + tile, own << 2 | 1);
    });
  }
  for (uint64_t end = tile; end > 0;) {
    b.phase([&](unsigned lane) {
      sum[lane] = 0;
      complete[lane] = Block::lanes;
      if (lane >= end) return;
      uint64_t word = load_acquire(state + (end - 1 - lane));
      while (!(word & 1)) word = load_acquire(state + (end - 1 - lane));
      sum[lane] = word >> 2;
      if (word & 2) complete[lane] = lane;
    });
    const uint32_t nearest = b.min(complete);
    b.phase([&](unsigned lane) {
      if (lane > nearest) sum[lane] = 0;
    });
    before += b.sum(sum);
    if (nearest < Block::lanes || end <= Block::lanes) break;
    end -= Block::lanes;
  }
  b.phase([&](unsigned lane) {
    if (lane == 0) store_release(state + tile, (before + own) << 2 | 3);
  });
  return before;
}

// Whether this is the last of `blocks` blocks to arrive here; it then sees the writes of all of them. `done`: a word
// that is zero before the launch.
template <class Block>
DR_HD bool last_of(Block& b, uint32_t* done, uint32_t blocks) {
  // One lane's fences suffice: barriers order the other lanes' accesses before and after them.
  return b.template once<uint32_t>([&] {
    fence_grid();
    const uint32_t before = atomic_add(done, 1u);
    fence_grid();
    return before;
  }) == blocks - 1;
}

}  // namespace dr
