// The r-th largest key on a GPU: in a histogram, and by radix; and the selection around it.
#pragma once

#include <cstdint>

#include "sparsify/select_unit_tile.hpp"

namespace dr {

// Lanes that read runs of 32 words use different banks.
DR_HD constexpr uint32_t bank_place(uint32_t i) { return i + i / 32; }

struct rank_place {
  uint32_t bin, rank;  // rank: in the bin, from 1; 0: there are fewer elements
};

// Finds the bins, from the top, of the elements of two ranks (from 1). `bins`: aligned to 16 bytes; fewer than 2^32
// elements.
template <uint32_t Bins, class Block>
DR_HD void find_ranks(Block& b, const uint32_t* bins, uint32_t rank, uint32_t other, rank_place& at,
                      rank_place& at_other) {
  constexpr uint32_t share = Bins / Block::lanes;
  static_assert(share % 4 == 0 && Bins % Block::lanes == 0);
  struct part {
    vector16 of[share / 4];
  };
  typename Block::template each<part> mine;
  typename Block::template each<uint32_t> before;
  typename Block::template each<uint64_t> found, found_other;
  b.phase([&](unsigned lane) {
    const auto* const from = reinterpret_cast<const vector16*>(bins) + (Block::lanes - 1 - lane) * (share / 4);
    uint32_t sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < share / 4; ++i) mine[lane].of[i] = from[i];
#pragma unroll
    for (uint32_t i = 0; i < share; ++i) sum += mine[lane].of[i / 4].word[i % 4];
    before[lane] = sum;
  });
  b.exclusive_sum(before);
  b.phase([&](unsigned lane) {
    const uint32_t first = (Block::lanes - 1 - lane) * share;
    uint32_t sum = before[lane];
    found[lane] = found_other[lane] = 0;
#pragma unroll
    for (uint32_t i = share; i-- > 0;) {
      const uint32_t here = mine[lane].of[i / 4].word[i % 4];
      if (sum < rank && rank - sum <= here) found[lane] = (uint64_t{first + i} << 32) | (rank - sum);
      if (sum < other && other - sum <= here) found_other[lane] = (uint64_t{first + i} << 32) | (other - sum);
      sum += here;
    }
  });
  const auto place = [](uint64_t all) {
    return rank_place{static_cast<uint32_t>(all >> 32), static_cast<uint32_t>(all)};
  };
  at = place(b.max(found));
  at_other = other == rank ? at : place(b.max(found_other));
}
template <uint32_t Bins, class Block>
DR_HD rank_place find_rank(Block& b, const uint32_t* bins, uint32_t rank) {
  rank_place at, same;
  find_ranks<Bins>(b, bins, rank, rank, at, same);
  return at;
}

struct exact_rank {
  uint32_t key, ties;  // ties: the rank among equal keys; 0: there are fewer keys
};

// Counts those of a lane's keys whose bits from shift + bits on are `prefix`, in hist by the `bits` bits below: each(f)
// calls f(key). A run of one bin, frequent in data that is not random, is added at once.
template <class Each>
DR_HD void count_keys(uint32_t* hist, uint32_t prefix, uint32_t shift, uint32_t bits, Each&& each) {
  uint32_t bin = 0, run = 0;
  each([&](uint32_t key) {
    if (uint64_t{key} >> shift >> bits != prefix) return;
    const uint32_t next = key >> shift & ((1u << bits) - 1);
    if (next != bin && run) {
      atomic_add(hist + bin, run);
      run = 0;
    }
    bin = next;
    ++run;
  });
  if (run) atomic_add(hist + bin, run);
}

// The key of rank `rank`, by radix: keys of `bits` bits, at most 31; larger keys do not count. each(lane, f) calls
// f(key) for a lane's. `hist`: 2048 words of shared memory.
template <class Block, class Each>
DR_HD exact_rank select_exactly(Block& b, uint32_t* hist, uint32_t rank, uint32_t bits, Each&& each) {
  constexpr uint32_t digit = 11;
  static_assert(1u << digit == select_bins);
  uint32_t prefix = 0;
  for (uint32_t shift = bits; shift > 0;) {
    const uint32_t top = shift;
    shift = shift > digit ? shift - digit : 0;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_bins; i += Block::lanes) hist[i] = 0;
    });
    b.phase([&](unsigned lane) { count_keys(hist, prefix, shift, top - shift, [&](auto&& f) { each(lane, f); }); });
    const rank_place p = find_rank<select_bins>(b, hist, rank);
    if (p.rank == 0) return {0, 0};
    prefix = prefix << (top - shift) | p.bin;
    rank = p.rank;
  }
  return {prefix, rank};
}

// Counts of selected elements have those above the threshold in the high half, and those that equal it in the low half.
DR_HD inline uint64_t selected_of(uint64_t counted, uint32_t ties) {
  const uint64_t equal = static_cast<uint32_t>(counted);
  return (counted >> 32) + (equal < ties ? equal : ties);
}

}  // namespace dr
