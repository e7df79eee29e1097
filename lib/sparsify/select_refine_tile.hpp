// Finds the exact threshold in the bin of rank r, and orders the tiles.
#pragma once

#include <cstdint>

#include "sparsify/select_rank_tile.hpp"

namespace dr {

template <class Bits, size_t N>
struct select_refine {
  static constexpr const char* name = "select_refine";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  struct shared {
    alignas(16) uint32_t hist[select_bins];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    if (u.row->fault.code != DR_OK) return;
    const view v = view::of(a, u);
    select_state& state = v.state();
    const auto noted = static_cast<uint32_t>(state.noted), above = static_cast<uint32_t>(state.noted >> 32);
    const uint32_t lo = state.lo, shift = state.shift, index = b.index() - u.first_tile;
    const bool all = !v.is_ranked() || (noted < u.target && lo == 1);
    // Some blocks order the tiles, the others find the threshold, so none waits for both.
    const bool orders = index < v.at.order_blocks;
    if (orders) order(b, v);
    if (orders && v.is_ranked()) return;
    bool fails = !all && (noted > u.capacity || noted < u.target || above >= u.target);
    exact_rank cut{0, 0};  // every candidate is above it
    if (!all && !fails) {
      const rank_place place = find_rank<select_bins>(b, v.bins(), u.target - above);
      cut = {lo + (place.bin << shift), place.rank};
      if (shift) collect(b, s, v, (index - v.at.order_blocks) * collect_tile, noted, place.bin);
    }
    const uint32_t others = v.is_ranked() ? v.at.order_blocks : 0;
    if (!last_of(b, &state.done_refine, v.at.refine_blocks - others)) return;
    if (!all && !fails && shift) fails = !settle(b, s, v, cut);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      state.above = cut.key;
      state.ties = cut.ties;
      state.ready = 1;
      state.failed = fails;
      if (fails) atomic_or(&view::of(a, a.job[0]).state().any_failed, 1u);
    });
  }

  // Sums the tiles' counts, which orders the candidates, and finds the beginning of slices in this order.
  template <class Block>
  DR_HD static void order(Block& b, const view& v) {
    constexpr uint32_t share = order_tile / lanes;
    struct part {
      uint32_t count[share];
    };
    typename Block::template each<part> mine;
    typename Block::template each<uint32_t> before;
    const uint32_t k = take_tile(b, &v.state().order_ticket);
    b.phase([&](unsigned lane) {
      before[lane] = 0;
#pragma unroll
      for (uint32_t i = 0; i < share; ++i) {
        const uint32_t t = k * order_tile + lane * share + i;
        before[lane] += mine[lane].count[i] = t < v.at.tiles ? v.table()[2 * uint64_t{t} + 1] : 0;
      }
    });
    const uint32_t own = b.exclusive_sum(before);
    const auto base = static_cast<uint32_t>(lookback(b, v.order(), k, own));
    b.phase([&](unsigned lane) {
      uint32_t rank = base + before[lane];
#pragma unroll
      for (uint32_t i = 0; i < share; ++i) {
        const uint32_t t = k * order_tile + lane * share + i, count = mine[lane].count[i];
        if (t > v.at.tiles) break;
        v.table()[2 * uint64_t{t} + 1] = rank;  // (after the last tile: of all)
        for (uint64_t m = (uint64_t{rank} + select_slice - 1) / select_slice;
             m * select_slice < uint64_t{rank} + count && m < v.at.slices; ++m)
          v.slice()[m] = t;
        rank += count;
      }
    });
  }

  // Lists the keys of a bin among the candidates from `begin` on, in any order, up to the capacity.
  template <class Block>
  DR_HD static void collect(Block& b, shared& s, const view& v, uint32_t begin, uint32_t n, uint32_t bin) {
    constexpr uint32_t share = collect_tile / lanes;
    const uint32_t room = select_layout::list_size(v.unit.target);
    select_state& state = v.state();
    const uint32_t lo = state.lo, hi = state.hi, shift = state.shift;
    struct part {
      uint32_t key[share];
    };
    typename Block::template each<part> mine;
    typename Block::template each<uint32_t> found, places;
    b.phase([&](unsigned lane) {
      found[lane] = 0;
      if (lane < 2) s.hist[lane] = 0;
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        mine[lane].key[k] = i < n ? key_of(v.noted()[i]) : 0;
      }
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        const uint32_t key = mine[lane].key[k];  // (those above hi are in no bin)
        found[lane] |= (key >= lo && key <= hi && (key - lo) >> shift == bin ? 1u : 0u) << k;
      }
      places[lane] = static_cast<uint32_t>(popcount(found[lane]));
    });
    const uint32_t all = b.exclusive_sum(places);
    if (all == 0) return;
    b.phase([&](unsigned lane) {
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        if (!(found[lane] >> k & 1)) continue;
        atomic_max(s.hist, ~mine[lane].key[k]);
        atomic_max(s.hist + 1, mine[lane].key[k]);
      }
    });
    const uint32_t at = b.template once<uint32_t>([&] {
      atomic_max(&state.smallest, s.hist[0]);
      atomic_max(&state.largest, s.hist[1]);
      return atomic_add(&state.listed, all);
    });
    b.phase([&](unsigned lane) {
      uint32_t to = at + places[lane];
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        if (!(found[lane] >> k & 1)) continue;
        if (to < room) v.list()[to] = mine[lane].key[k];
        ++to;
      }
    });
  }

  // Finds the key in the bin. False: there are too many keys, and they are not all equal.
  template <class Block>
  DR_HD static bool settle(Block& b, shared& s, const view& v, exact_rank& cut) {
    const select_state& state = v.state();
    const uint32_t first = cut.key, n = state.listed;
    if (n <= few) {
      cut = settle_few(b, s, v, n, cut.ties);
      return true;
    }
    if (~state.smallest == state.largest) {
      cut.key = state.largest;
      return true;
    }
    if (n > select_layout::list_size(v.unit.target)) return false;
    cut = select_exactly(b, s.hist, cut.ties, state.shift, [&](unsigned lane, auto&& count) {
      for (uint32_t i = lane; i < n; i += lanes) count(v.list()[i] - first);
    });
    cut.key += first;
    return true;
  }

  // With few keys a lane compares its own with all.
  static constexpr uint32_t few = 2 * lanes;
  template <class Block>
  DR_HD static exact_rank settle_few(Block& b, shared& s, const view& v, uint32_t n, uint32_t rank) {
    typename Block::template each<uint64_t> found;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < few; i += lanes) s.hist[i] = i < n ? v.list()[i] : 0;
    });
    b.phase([&](unsigned lane) {
      found[lane] = 0;
      for (uint32_t i = lane; i < n; i += lanes) {
        const uint32_t own = s.hist[i];
        uint32_t above = 0, equal = 0;
        for (uint32_t k = 0; k < n; k += 4) {
          const vector16 x = *reinterpret_cast<const vector16*>(s.hist + k);
#pragma unroll
          for (uint32_t c = 0; c < 4; ++c) {
            above += x.word[c] > own;
            equal += x.word[c] == own;
          }
        }
        if (above < rank && rank <= above + equal) found[lane] = uint64_t{own} << 32 | (rank - above);
      }
    });
    const uint64_t all = b.max(found);
    return {static_cast<uint32_t>(all >> 32), static_cast<uint32_t>(all)};
  }
};

}  // namespace dr
