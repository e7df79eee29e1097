// Candidates in the order of tiles, cut at the threshold: support and values.
#pragma once

#include <cstdint>

#include "sparsify/select_unit_tile.hpp"

namespace dr {

template <class Bits, size_t N>
struct select_compact {
  static constexpr const char* name = "select_compact";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  static constexpr uint32_t share = select_slice / lanes, words = select_slice / 32;
  struct shared {
    alignas(16) uint32_t position[select_slice];
    alignas(16) Bits value[select_slice];
    // The offset from the number of a candidate to its position in the tile's list: for the tile that begins with it;
    // at multiples of 32, for a tile that began before. `starts`: a bit for every candidate with which a tile begins.
    uint32_t offset[select_slice], starts[words], goes_on[words];
  };
  struct part {
    uint32_t position[share];
    Bits value[share];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    const view v = view::of(a, u);
    select_state& state = v.state();
    // (The row's fault is not tested: other blocks of this launch may raise it, and none may return while others look
    // back.)
    if (!state.ready || state.failed) return;
    const auto noted = static_cast<uint32_t>(state.noted);
    const bool unlisted = u.kind == select_from_kind && noted > u.capacity;
    const uint32_t blocks = noted && !unlisted ? (noted - 1) / select_slice + 1 : 0, index = b.index() - u.first_tile;
    if (index >= blocks) {
      if (blocks == 0 && index == 0)
        b.phase([&](unsigned lane) {
          if (lane != 0) return;
          if (unlisted)
            tell_unlisted(u, noted);
          else
            tell_count(u, 0);
        });
      return;
    }
    const uint32_t slice = take_tile(b, &state.ticket), begin = slice * select_slice;
    const uint32_t count = noted - begin < select_slice ? noted - begin : select_slice;
    gather(b, s, v, begin, count, slice + 1 < blocks ? v.slice()[slice + 1] : v.at.tiles - 1);
    cut(b, s, v, slice, count, slice + 1 == blocks);
  }

  // Positions and values of candidates, in order.
  template <class Block>
  DR_HD static void gather(Block& b, shared& s, const view& v, uint32_t begin, uint32_t count, uint32_t last) {
    const uint32_t first = v.slice()[begin / select_slice];
    b.phase([&](unsigned lane) {
      if (lane < words) s.starts[lane] = 0;
    });
    b.phase([&](unsigned lane) {
      for (uint64_t t = uint64_t{first} + lane; t <= last; t += lanes) {
        const uint32_t* const entry = v.table() + 2 * t;
        // Ranks in the slice, of the tile's first candidate and past its last.
        const int64_t from = int64_t{entry[1]} - begin, to = int64_t{entry[3]} - begin;
        if (from >= to || to <= 0 || from >= count) continue;
        const auto start = static_cast<uint32_t>(from > 0 ? from : 0),
                   end = to < count ? static_cast<uint32_t>(to) : count;
        const uint32_t offset = entry[0] + begin - entry[1];
        s.offset[start] = offset;
        atomic_or(s.starts + start / 32, 1u << start % 32);
        for (uint32_t w = (start + 31) / 32; w * 32 < end; ++w) s.goes_on[w] = offset;
      }
    });
    // A lane issues all its loads before it writes.
    typename Block::template each<part> mine;
    b.phase([&](unsigned lane) {
      part& p = mine[lane];
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        const uint32_t i = k * lanes + lane < count ? k * lanes + lane : 0, w = i / 32;
        const uint32_t before = s.starts[w] & ((2u << i % 32) - 1);
        const uint32_t offset = before ? s.offset[w * 32 + static_cast<uint32_t>(bit_width(before)) - 1] : s.goes_on[w];
        p.position[k] = v.positions()[offset + i];
        p.value[k] = v.is_ranked() ? v.noted()[offset + i] : Bits{0};
      }
      // (With rows of several values every candidate is selected.)
      if (!v.is_ranked() && v.unit.columns() == 1) {
#pragma unroll
        for (uint32_t k = 0; k < share; ++k) p.value[k] = stored<Bits>(v.common, v.unit, p.position[k]);
      }
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        s.position[k * lanes + lane] = p.position[k];
        s.value[k * lanes + lane] = p.value[k];
      }
    });
  }

  // Selects the candidates above the threshold, and the first ones that equal it.
  template <class Block>
  DR_HD static void cut(Block& b, shared& s, const view& v, uint32_t slice, uint32_t count, bool last) {
    const select_unit& u = v.unit;
    const uint32_t above = v.state().above, ties = v.state().ties;
    typename Block::template each<part> mine;
    typename Block::template each<uint64_t> places;
    typename Block::template each<uint32_t> over, equal;
    b.phase([&](unsigned lane) {
      part& p = mine[lane];
      over[lane] = equal[lane] = 0;
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        p.position[k] = s.position[lane * share + k];
        p.value[k] = s.value[lane * share + k];
      }
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        if (lane * share + k >= count) continue;
        const uint32_t key = above ? key_of(p.value[k]) : 1;
        over[lane] |= (key > above ? 1u : 0u) << k;
        equal[lane] |= (key == above ? 1u : 0u) << k;
      }
      places[lane] = static_cast<uint64_t>(popcount(over[lane])) << 31 | popcount(equal[lane]);
    });
    const uint64_t all = b.exclusive_sum(places), before = lookback(b, v.lookback(), slice, all);
    const uint64_t first = selected_of(before, ties), end = selected_of(before + all, ties);
    b.phase([&](unsigned lane) {
      const uint64_t sum = before + places[lane];
      uint64_t to = (sum >> 31) - first, tie = sum & low_half;
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        if (!((over[lane] | equal[lane]) >> k & 1)) continue;
        const uint64_t at = to + (tie < ties ? tie : ties);
        if (over[lane] >> k & 1 || tie < ties) {
          s.position[at] = mine[lane].position[k];
          s.value[at] = mine[lane].value[k];
        }
        to += over[lane] >> k & 1;
        tie += equal[lane] >> k & 1;
      }
    });
    if (u.columns() == 1)
      write(b, s, v, first, static_cast<uint32_t>(end - first));
    else
      write_rows(b, s, v, first, static_cast<uint32_t>(end - first));
    if (!last) return;
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(u, end);
    });
  }

  static constexpr uint64_t low_half = (uint64_t{1} << 31) - 1;
  // The number of selected candidates, from two counts of 31 bits.
  DR_HD static uint64_t selected_of(uint64_t counts, uint32_t ties) {
    return (counts >> 31) + ((counts & low_half) < ties ? counts & low_half : ties);
  }

  template <class Block>
  DR_HD static void write(Block& b, shared& s, const view& v, uint64_t first, uint32_t n) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < n; i += lanes) keep(v.common, v.unit, first + i, s.position[i], s.value[i]);
    });
  }
  template <class Block>
  DR_HD static void write_rows(Block& b, shared& s, const view& v, uint64_t first, uint32_t n) {
    const select_unit& u = v.unit;
    if (first >= u.count_max) return;
    if (n > u.count_max - first) n = static_cast<uint32_t>(u.count_max - first);
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < n; i += lanes) u.support[first + i] = s.position[i];
      const uint32_t whole = lanes / u.width, rest = lanes % u.width;
      uint32_t row = lane / u.width, column = lane % u.width;
      for (uint64_t at = first * u.width + lane; row < n; at += lanes) {
        const Bits value = static_cast<const Bits*>(u.values)[uint64_t{s.position[row]} * u.width + column];
        static_cast<Bits*>(u.selected)[at] = value;
        judge_selected(v.common, u, key_of(value), at);
        row += whole;
        column += rest;
        if (column >= u.width) {
          column -= u.width;
          ++row;
        }
      }
    });
  }
};

}  // namespace dr
