// Decoupled look-back (Merrill, Garland 2016): a running sum over tiles in one launch. Blocks draw tiles by ticket, so
// a block waits only for tiles whose blocks are running.
#pragma once

#include <cstdint>
#include <type_traits>

#include "primitive/atomics.hpp"

namespace dr {

// The next tile of a launch; `ticket` is a word that was zero before it.
template <class Block>
DR_HD uint32_t take_tile(Block& b, uint32_t* ticket) {
  return b.template once<uint32_t>([&] { return atomic_add(ticket, 1u); });
}

// Words that a lane of look-back reads at once: the warp then sees 256 predecessors, which is most launches whole.
inline constexpr unsigned lookback_words = 8;

// The sum of the tiles before `tile`; publishes this tile's sum. `state`: a word a tile, zero before the launch; sums
// are below 2^62. A word: bit 0: it is published; bit 1: it is the sum up to and including its tile, otherwise of its
// tile alone; the rest is the sum. A block's earlier reads and writes are visible to its successors.
template <class Block>
DR_HD uint64_t lookback(Block& b, uint64_t* state, uint64_t tile, uint64_t own) {
  struct seen {
    uint64_t word[lookback_words];
  };
  return b.template by_warp<uint64_t>([&](auto& w) {
    using warp = std::remove_reference_t<decltype(w)>;
    constexpr unsigned lanes = warp::lanes, most = lanes * lookback_words;
    typename warp::template each<seen> words;
    typename warp::template each<uint64_t> sum;
    typename warp::template each<uint32_t> complete;
    uint64_t before = 0;
    if (tile > 0) {
      w.phase([&](unsigned lane) {
        if (lane == 0) store_release(state + tile, own << 2 | 1);
      });
    }
    for (uint64_t end = tile; end > 0; end -= most) {
      w.phase([&](unsigned lane) {
        seen& s = words[lane];
        for (bool waits = true; waits;) {
          waits = false;
#pragma unroll
          for (unsigned k = 0; k < lookback_words; ++k) {
            const uint64_t back = k * lanes + lane;
            s.word[k] = back < end ? load_relaxed(state + (end - 1 - back)) : 1;
          }
#pragma unroll
          for (unsigned k = 0; k < lookback_words; ++k) waits |= !(s.word[k] & 1);
        }
        fence_acquire();
        complete[lane] = most;
#pragma unroll
        for (unsigned k = lookback_words; k-- > 0;)
          if (s.word[k] & 2) complete[lane] = k * lanes + lane;
      });
      const uint32_t nearest = w.min(complete);
      w.phase([&](unsigned lane) {
        sum[lane] = 0;
#pragma unroll
        for (unsigned k = 0; k < lookback_words; ++k)
          if (k * lanes + lane <= nearest) sum[lane] += words[lane].word[k] >> 2;
      });
      before += w.sum(sum);
      if (nearest < most || end <= most) break;
    }
    w.phase([&](unsigned lane) {
      if (lane == 0) store_release(state + tile, (before + own) << 2 | 3);
    });
    return before;
  });
}

// Waits until `blocks` blocks have arrived here (last_of), and sees the writes of all of them. Of a launch whose tickets
// before this block's are those of the blocks that it waits for.
template <class Block>
DR_HD void wait(Block& b, const uint32_t* done, uint32_t blocks) {
  b.template once<uint32_t>([&] {
    while (load_acquire(done) < blocks) {
    }
    return 0;
  });
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
