// The largest magnitudes of every chunk of contiguous elements: a block selects whole chunks, in one launch.
#pragma once

#include <cstdint>

#include "sparsify/select_rank_tile.hpp"

namespace dr {

template <class Bits, size_t N>
struct select_chunks {
  static constexpr const char* name = "select_chunks";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  // Up to this size an element is compared with all of its chunk; a radix would have more barriers than elements.
  static constexpr uint32_t few = 256;
  struct shared {
    alignas(16) uint32_t hist[select_bins];
    uint32_t key[bank_place(chunk_tile)];  // of a tile of at most so many elements
    uint32_t chosen[chunk_max / 32];       // a bit for each element of the tile
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    const view v = view::of(a, u);
    // (The row's fault is not tested: other blocks of this launch may raise it, and none may return while others look
    // back.)
    const bool live = !(u.row->accumulates & state_refused);
    const uint32_t tile = take_tile(b, &v.state().ticket), span = select_layout::chunk_span(u.chunk_size());
    const uint32_t begin = tile * span, n = u.d - begin < span ? u.d - begin : span;
    if (live) choose(b, s, v, begin, n);
    typename Block::template each<uint32_t> places;
    const uint32_t words = (n + 31) / 32, share = (words + lanes - 1) / lanes;
    b.phase([&](unsigned lane) {
      places[lane] = 0;
      for (uint32_t w = lane * share; live && w < words && w < (lane + 1) * share; ++w)
        places[lane] += static_cast<uint32_t>(popcount(s.chosen[w]));
    });
    const uint32_t own = b.exclusive_sum(places);
    const uint64_t before = lookback(b, v.lookback(), tile, own);
    b.phase([&](unsigned lane) {
      if (!live) return;
      uint64_t to = before + places[lane];
      for (uint32_t w = lane * share; w < words && w < (lane + 1) * share; ++w)
        for (uint32_t left = s.chosen[w]; left; left &= left - 1) {
          const uint32_t i = begin + 32 * w + static_cast<uint32_t>(countr_zero(left));
          keep(v.common, u, to++, i, stored<Bits>(v.common, u, i));
        }
      if (lane == 0 && tile + 1 == v.at.tiles) tell_count(u, before + own);
    });
  }

  template <class Block>
  DR_HD static void choose(Block& b, shared& s, const view& v, uint32_t begin, uint32_t n) {
    const select_unit& u = v.unit;
    const bool fits = u.chunk_size() <= chunk_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t w = lane; w < (n + 31) / 32; w += lanes) s.chosen[w] = 0;
#pragma unroll 8
      for (uint32_t i = lane; i < n; i += lanes) {
        const unit_run r = unit_run::at(u, begin + i);
        const uint32_t at = begin + i - r.first;
        Bits value = static_cast<const Bits*>(r.values)[at];
        if (r.residual) {
          const float acc = accumulated(v.common, r.residual[at], value);
          r.residual[at] = acc;
          value = rounded_value<Bits>(v.common, acc);
        }
        if (fits) s.key[bank_place(i)] = key_of(value);
      }
    });
    const auto key = [&](uint32_t i) -> uint32_t {
      return fits ? s.key[bank_place(i)] : key_of(stored<Bits>(v.common, u, begin + i));
    };
    if (u.chunk_size() <= few) return compare(b, s, u, n, key);
    for (uint32_t first = 0; first < n; first += u.chunk_size()) {
      const uint32_t length = n - first < u.chunk_size() ? n - first : u.chunk_size();
      choose_in(b, s, first, length, u.chunk_target_of(length), key);
    }
  }

  // Small chunks: an element is selected if fewer than the target come before it.
  template <class Block, class F>
  DR_HD static void compare(Block& b, shared& s, const select_unit& u, uint32_t n, F&& key) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < n; i += lanes) {
        const uint32_t own = key(i), first = i / u.chunk_size() * u.chunk_size();
        if (own == 0) continue;
        const uint32_t length = n - first < u.chunk_size() ? n - first : u.chunk_size(),
                       target = u.chunk_target_of(length);
        uint32_t before = 0;
        for (uint32_t k = first; k < first + length && before < target; ++k) {
          const uint32_t other = key(k);
          before += other > own || (other == own && k < i);
        }
        if (before < target) atomic_or(s.chosen + i / 32, 1u << i % 32);
      }
    });
  }

  // One chunk: its threshold by radix, and the first of those that equal it.
  template <class Block, class F>
  DR_HD static void choose_in(Block& b, shared& s, uint32_t first, uint32_t n, uint32_t target, F&& key) {
    const exact_rank cut = select_exactly(b, s.hist, target, key_bits<Bits>, [&](unsigned lane, auto&& count) {
      for (uint32_t i = lane; i < n; i += lanes)
        if (const uint32_t k = key(first + i)) count(k);
    });
    const uint32_t share = (n + lanes - 1) / lanes;
    typename Block::template each<uint32_t> equal;
    b.phase([&](unsigned lane) {
      equal[lane] = 0;
      for (uint32_t i = lane * share; i < n && i < (lane + 1) * share; ++i) {
        const uint32_t k = key(first + i);
        equal[lane] += k == cut.key && k;
      }
    });
    b.exclusive_sum(equal);
    b.phase([&](unsigned lane) {
      uint32_t ties = equal[lane];
      for (uint32_t i = lane * share; i < n && i < (lane + 1) * share; ++i) {
        const uint32_t k = key(first + i);
        const bool tie = k == cut.key && k;
        if (k > cut.key || (tie && ties < cut.ties)) atomic_or(s.chosen + (first + i) / 32, 1u << (first + i) % 32);
        ties += tie;
      }
    });
  }
};

}  // namespace dr
