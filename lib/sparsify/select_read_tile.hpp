// Passes over the elements of a unit where they lie: keys, and the selection around a threshold.
#pragma once

#include <cstdint>

#include "sparsify/select_rank_tile.hpp"

namespace dr {

// The key of a value of the tensor, or of its residual.
template <class Bits>
DR_HD uint32_t key_in(const select_view<Bits>&, Bits b) {
  return key_of(b);
}
template <class Bits>
DR_HD uint32_t key_in(const select_view<Bits>& v, float acc) {
  return key_of(rounded_value<Bits>(v.common, acc));
}
// Calls f(from), for the run's element i: of the values, or of the residual, which holds the accumulator.
template <class Bits, class F>
DR_HD auto from_run(const unit_run& r, uint32_t i, F&& f) {
  return r.residual ? f(static_cast<const float*>(r.residual + i)) : f(static_cast<const Bits*>(r.values) + i);
}

// Calls f(key) for a lane's part of n elements that are contiguous in memory, in any order.
template <unsigned Lanes, class Bits, class T, class F>
DR_HD void each_key_from(const select_view<Bits>& v, const T* from, uint32_t n, unsigned lane, F&& f) {
  constexpr uint32_t length = 16 / sizeof(T), deep = 4;
  const uint32_t off = static_cast<uint32_t>((16 - reinterpret_cast<uintptr_t>(from) % 16) % 16 / sizeof(T));
  const uint32_t head = off < n ? off : n, vectors = (n - head) / length;
  const auto* const at = reinterpret_cast<const vector16*>(from + head);
  for (uint64_t i = lane; i < head; i += Lanes) f(key_in(v, from[i]));
  for (uint64_t i = uint64_t{head} + vectors * length + lane; i < n; i += Lanes) f(key_in(v, from[i]));
  for (uint64_t i = lane; i < vectors; i += deep * Lanes) {
    vector16 x[deep];
#pragma unroll
    for (uint32_t k = 0; k < deep; ++k)
      if (i + k * Lanes < vectors) x[k] = at[i + k * Lanes];
#pragma unroll
    for (uint32_t k = 0; k < deep; ++k) {
      if (i + k * Lanes >= vectors) continue;
#pragma unroll
      for (uint32_t c = 0; c < length; ++c) f(key_in(v, element_of<T>(x[k], c)));
    }
  }
}
template <unsigned Lanes, class Bits, class F>
DR_HD void each_key_of(const select_view<Bits>& v, const unit_run& r, uint32_t begin, uint32_t end, unsigned lane,
                       F&& f) {
  from_run<Bits>(r, begin - r.first, [&](const auto* from) { each_key_from<Lanes>(v, from, end - begin, lane, f); });
}

inline constexpr uint32_t write_own = 16;  // consecutive elements of a lane

// Selects from `span` elements, in order: those above the threshold, and the first `ties` that equal it; never zeros.
// read(at, take): calls take(k, key) for the elements at + k, k < 16. position(at): the element's, in the unit. Returns
// `before` and what it found.
template <class Bits, class Block, class Read, class Position>
DR_HD uint64_t write_selected(Block& b, const select_view<Bits>& v, uint64_t span, const exact_rank& cut,
                              uint64_t before, Read&& read, Position&& position) {
  typename Block::template each<uint32_t> over, equal;
  typename Block::template each<uint64_t> places;
  for (uint64_t first = 0; first < span; first += uint64_t{write_own} * Block::lanes) {
    b.phase([&](unsigned lane) {
      over[lane] = equal[lane] = 0;
      read(first + uint64_t{lane} * write_own, [&](uint32_t k, uint32_t key) {
        over[lane] |= (key > cut.key ? 1u : 0u) << k;
        equal[lane] |= (key == cut.key && key ? 1u : 0u) << k;
      });
      places[lane] = uint64_t{popcount(over[lane])} << 32 | popcount(equal[lane]);
    });
    const uint64_t all = b.exclusive_sum(places);
    b.phase([&](unsigned lane) {
      const uint64_t sum = before + places[lane], at = first + uint64_t{lane} * write_own;
      uint64_t above = sum >> 32, ties = static_cast<uint32_t>(sum);
      for (uint32_t left = over[lane] | equal[lane]; left; left &= left - 1) {
        const unsigned k = countr_zero(left);
        const bool is_above = over[lane] >> k & 1;
        const uint32_t i = position(at + k);
        if (is_above || ties < cut.ties)
          keep(v.common, v.unit, above + (ties < cut.ties ? ties : cut.ties), i, stored<Bits>(v.common, v.unit, i));
        above += is_above;
        ties += !is_above;
      }
    });
    before += all;
  }
  return before;
}

// Selects from the elements [begin, end) of a run, by vectors.
template <class Bits, class Block>
DR_HD uint64_t write_run(Block& b, const select_view<Bits>& v, const unit_run& r, uint32_t begin, uint32_t end,
                         const exact_rank& cut, uint64_t before) {
  return from_run<Bits>(r, begin - r.first, [&](const auto* from) {
    using T = std::remove_cvref_t<decltype(*from)>;
    constexpr uint32_t length = 16 / sizeof(T);
    // Vectors are aligned, so the first may begin before the elements do.
    const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T));
    const uint64_t span = uint64_t{lead} + (end - begin);
    const auto read = [&](uint64_t at, auto&& take) {
      if (at >= lead && at + write_own <= span) {
        vector16 x[write_own / length];
#pragma unroll
        for (uint32_t q = 0; q < write_own / length; ++q)
          x[q] = reinterpret_cast<const vector16*>(from + (at - lead))[q];
#pragma unroll
        for (uint32_t k = 0; k < write_own; ++k) take(k, key_in(v, element_of<T>(x[k / length], k % length)));
      } else {
        for (uint32_t k = 0; k < write_own; ++k)
          if (at + k >= lead && at + k < span) take(k, key_in(v, from[at + k - lead]));
      }
    };
    return write_selected(b, v, span, cut, before, read,
                          [&](uint64_t at) { return static_cast<uint32_t>(begin + (at - lead)); });
  });
}

}  // namespace dr
