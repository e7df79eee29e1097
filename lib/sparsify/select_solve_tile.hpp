// All of a small tensor, by one block: its threshold by radix, over values that stay in the block's cache.
#pragma once

#include <cstdint>

#include "sparsify/select_read_tile.hpp"

namespace dr {

template <class Bits, size_t N>
struct select_solve {
  static constexpr const char* name = "select_solve";
  static constexpr unsigned lanes = 512, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  struct shared {
    alignas(16) uint32_t hist[select_bins];
  };

  template <class F>
  DR_HD static void each_ahead(const args& a, uint32_t block, F&& f) {
    const select_unit& u = job_of_tile(a, block);
    if (u.flat()) return;
    f(u.values, u.d * sizeof(Bits));
    if (u.residual) f(u.residual, u.d * sizeof(float));
  }

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    if (u.row->fault.code != DR_OK) return;
    const view v = view::of(a, u);
    if (u.residual) accumulate(b, v);
    const exact_rank cut = select_exactly(b, s.hist, u.target, key_bits<Bits>, [&](unsigned lane, auto&& count) {
      const auto nonzero = [&](uint32_t key) {
        if (key) count(key);
      };
      if (!u.flat()) return each_key_of<lanes>(v, unit_run::all(u), 0, u.d, lane, nonzero);
      for (uint32_t i = lane * write_own; i < u.d; i += lanes * write_own)
        few(v, i, [&](uint32_t, uint32_t key) { nonzero(key); });
    });
    const uint64_t all = u.flat() ? write_selected(
                                        b, v, u.d, cut, 0,
                                        [&](uint64_t at, auto&& take) {
                                          if (at < u.d) few(v, static_cast<uint32_t>(at), take);
                                        },
                                        [](uint64_t at) { return static_cast<uint32_t>(at); })
                                  : write_run(b, v, unit_run::all(u), 0, u.d, cut, 0);
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(u, selected_of(all, cut.ties));
    });
  }

  // A lane's consecutive elements of a bucket, from i on: calls f(k, key) for element i + k.
  template <class F>
  DR_HD static void few(const view& v, uint32_t i, F&& f) {
    const uint32_t stop = v.unit.d - i < write_own ? v.unit.d : i + write_own;
    each_run(v.unit, i, stop, [&](const unit_run& r, uint32_t from, uint32_t to) {
      for (uint32_t k = from; k < to; ++k) f(k - i, key_of(stored<Bits>(v.common, r, k - r.first)));
    });
  }

  // m := acc.
  template <class Block>
  DR_HD static void accumulate(Block& b, const view& v) {
    const select_unit& u = v.unit;
    b.phase([&](unsigned lane) {
#pragma unroll 8
      for (uint32_t i = lane; i < u.d; i += lanes) {
        const unit_run r = unit_run::at(u, i);
        float& m = r.residual[i - r.first];
        m = accumulated(v.common, m, static_cast<const Bits*>(r.values)[i - r.first]);
      }
    });
  }
};

}  // namespace dr
