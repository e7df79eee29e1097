// The bin of rank r, and in it the exact threshold; and an order of tiles.
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
    bool fails =
        noted > u.capacity || (!all && (noted < u.target || above >= u.target || (shift && noted - above > v.at.room)));
    if (index < v.at.order_blocks) order(b, v);
    exact_rank cut{0, 0};  // every candidate is above it
    if (!all && !fails) {
      const rank_place place = find_rank<select_bins>(b, v.bins(), u.target - above);
      cut = {lo + (place.bin << shift), place.rank};
      if (shift) collect(b, v, index, noted - above, place.bin);
    }
    if (!last_of(b, &state.done_refine, v.at.refine_blocks)) return;
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

  // Sums of the tiles' counts, so that candidates have an order; and where in it slices begin.
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
        v.table()[2 * uint64_t{t} + 1] = rank;  // (behind the last: of all)
        for (uint64_t m = (uint64_t{rank} + select_slice - 1) / select_slice;
             m * select_slice < uint64_t{rank} + count && m < v.at.slices; ++m)
          v.slice()[m] = t;
        rank += count;
      }
    });
  }

  // The keys of a bin, in any order: listed while there is room.
  template <class Block>
  DR_HD static void collect(Block& b, const view& v, uint32_t index, uint32_t n, uint32_t bin) {
    constexpr uint32_t share = collect_tile / lanes;
    const uint32_t room = select_layout::list_size(v.unit.target);
    select_state& state = v.state();
    const uint32_t lo = state.lo, shift = state.shift;
    typename Block::template each<uint32_t> found, places, least, most;
    for (uint64_t begin = uint64_t{index} * collect_tile; begin < n;
         begin += uint64_t{v.at.refine_blocks} * collect_tile) {
      b.phase([&](unsigned lane) {
        found[lane] = least[lane] = most[lane] = 0;
#pragma unroll
        for (uint32_t k = 0; k < share; ++k) {
          const uint64_t i = begin + k * lanes + lane;
          const uint32_t key = i < n ? v.keys()[i] : 0;
          if (i >= n || (key - lo) >> shift != bin) continue;
          found[lane] |= 1u << k;
          if (~key > least[lane]) least[lane] = ~key;
          if (key > most[lane]) most[lane] = key;
        }
        places[lane] = static_cast<uint32_t>(popcount(found[lane]));
      });
      const uint32_t all = b.exclusive_sum(places);
      if (all == 0) continue;
      const uint32_t low = b.max(least), high = b.max(most);
      const uint32_t at = b.template once<uint32_t>([&] {
        atomic_max(&state.least, low);
        atomic_max(&state.most, high);
        return atomic_add(&state.listed, all);
      });
      b.phase([&](unsigned lane) {
        uint32_t to = at + places[lane];
        for (uint32_t left = found[lane]; left && to < room; left &= left - 1)
          v.list()[to++] = v.keys()[begin + static_cast<uint32_t>(countr_zero(left)) * lanes + lane];
      });
    }
  }

  // The key in the bin. False if there are too many, and not all the same.
  template <class Block>
  DR_HD static bool settle(Block& b, shared& s, const view& v, exact_rank& cut) {
    const select_state& state = v.state();
    const uint32_t first = cut.key, n = state.listed;
    if (~state.least == state.most) {
      cut.key = state.most;
      return true;
    }
    if (n > select_layout::list_size(v.unit.target)) return false;
    cut = select_exactly(b, s.hist, n, cut.ties, state.shift, [&](uint32_t i) { return v.list()[i] - first; });
    cut.key += first;
    return true;
  }
};

}  // namespace dr
