// If the estimate of the sample failed (constant or adversarial data): radix over all elements, in one launch.
#pragma once

#include <cstdint>

#include "sparsify/select_rank_tile.hpp"

namespace dr {

template <class Bits, size_t N>
struct select_fallback {
  // It is launched even if it is not needed, so there are few blocks (blocks_a_processor), and each issues many loads at
  // once.
  static constexpr const char* name = "select_fallback";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  static constexpr unsigned blocks_a_processor = 4;
  static constexpr uint32_t steps = fallback_state::steps;
  using args = select_args<N>;
  using view = select_view<Bits>;
  struct shared {
    alignas(16) uint32_t hist[select_bins];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    if (view::of(a, a.job[0]).state().any_failed == 0) return;
    for (uint32_t i = 0; i < a.jobs; ++i) {
      const select_unit& u = a.job[i];
      if (u.d <= select_small || u.kind != select_largest_kind) continue;
      const view v = view::of(a, u);
      if (v.state().failed) select(b, s, v);
    }
  }

  // Every step goes over all pieces of the tensor, and begins when the step before has ended. Blocks draw step and piece by
  // ticket: so a block waits only for blocks that are running, however many of them have room at once.
  template <class Block>
  DR_HD static void select(Block& b, shared& s, const view& v) {
    const uint32_t d = v.unit.d, most = (d - 1) / fallback_tile + 1, pieces = b.blocks() < most ? b.blocks() : most;
    fallback_state& at = v.fallback();
    for (uint32_t ticket = take_tile(b, &at.ticket); ticket < steps * pieces; ticket = take_tile(b, &at.ticket)) {
      const uint32_t step = ticket / pieces, piece = ticket % pieces, each = d / pieces, longer = d % pieces;
      const uint32_t begin = each * piece + (piece < longer ? piece : longer), end = begin + each + (piece < longer);
      if (step > 0) wait(b, at.done + step - 1, pieces);
      if (step == 0)
        zero(b, v, piece, pieces);
      else if (step <= 3)
        count_digit(b, s, v, step - 1, begin, end);
      else if (step == 4)
        count(b, v, piece, begin, end);
      else
        write(b, v, piece, begin, end, piece + 1 == pieces);
      (void)last_of(b, at.done + step, pieces);
    }
  }

  DR_HD static constexpr uint32_t digit_bits(uint32_t digit) { return digit == 0 ? 11 : 10; }

  // Three histograms, in the memory of the sample's.
  template <class Block>
  DR_HD static void zero(Block& b, const view& v, uint32_t piece, uint32_t pieces) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = piece * lanes + lane; i < 3 * select_bins; i += pieces * lanes) v.sample()[i] = 0;
    });
  }

  // The threshold's first `digits` digits.
  template <class Block>
  DR_HD static exact_rank known(Block& b, const view& v, uint32_t digits) {
    exact_rank r{0, v.unit.target};
    for (uint32_t k = 0; k < digits; ++k) {
      const rank_place p = find_rank<select_bins>(b, v.sample() + k * select_bins, r.ties);
      if (p.rank == 0) return {0, 0};  // fewer than `target` are not zero: all of them are selected
      r = {r.key << digit_bits(k) | p.bin, p.rank};
    }
    return r;
  }

  template <class Block>
  DR_HD static void count_digit(Block& b, shared& s, const view& v, uint32_t digit, uint32_t begin, uint32_t end) {
    const exact_rank r = known(b, v, digit);
    if (r.ties == 0) return;
    const uint32_t bits = digit_bits(digit), shift = digit == 0 ? 20 : digit == 1 ? 10 : 0;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_bins; i += lanes) s.hist[i] = 0;
    });
    // A run of one bin, frequent in such data, is added at once.
    b.phase([&](unsigned lane) {
      uint32_t bin = 0, run = 0;
      each_key(v, begin, end, lane, [&](uint32_t key) {
        if (!key || uint64_t{key} >> shift >> bits != r.key) return;
        const uint32_t next = key >> shift & ((1u << bits) - 1);
        if (next != bin && run) {
          atomic_add(s.hist + bin, run);
          run = 0;
        }
        bin = next;
        ++run;
      });
      if (run) atomic_add(s.hist + bin, run);
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_bins; i += lanes)
        if (s.hist[i]) atomic_add(v.sample() + digit * select_bins + i, s.hist[i]);
    });
  }

  // Counts of a piece: above in the high half, equal in the low half.
  template <class Block>
  DR_HD static void count(Block& b, const view& v, uint32_t piece, uint32_t begin, uint32_t end) {
    const exact_rank r = known(b, v, 3);
    typename Block::template each<uint64_t> sum;
    b.phase([&](unsigned lane) {
      uint64_t own = 0;
      each_key(v, begin, end, lane,
               [&](uint32_t key) { own += key > r.key ? uint64_t{1} << 32 : key == r.key && key; });
      sum[lane] = own;
    });
    const uint64_t all = b.sum(sum);
    b.phase([&](unsigned lane) {
      if (lane == 0) v.counts()[piece] = all;
    });
  }

  // The key of a value of the tensor, or of its residual.
  DR_HD static uint32_t key_in(const view&, Bits b) { return key_of(b); }
  DR_HD static uint32_t key_in(const view& v, float acc) { return key_of(rounded_value<Bits>(v.common, acc)); }

  // Calls f(key) for a lane's part of the elements [begin, end), in any order.
  template <class F>
  DR_HD static void each_key(const view& v, uint32_t begin, uint32_t end, unsigned lane, F&& f) {
    each_run(v.unit, begin, end, [&](const unit_run& r, uint32_t from, uint32_t to) {
      if (r.residual)
        each_key_in(v, r.residual + (from - r.first), to - from, lane, f);
      else
        each_key_in(v, static_cast<const Bits*>(r.values) + (from - r.first), to - from, lane, f);
    });
  }
  template <class T, class F>
  DR_HD static void each_key_in(const view& v, const T* from, uint32_t n, unsigned lane, F&& f) {
    constexpr uint32_t length = 16 / sizeof(T), deep = 4;
    const uint32_t off = static_cast<uint32_t>((16 - reinterpret_cast<uintptr_t>(from) % 16) % 16 / sizeof(T));
    const uint32_t head = off < n ? off : n, vectors = (n - head) / length;
    const auto* const at = reinterpret_cast<const vector16*>(from + head);
    for (uint64_t i = lane; i < head; i += lanes) f(key_in(v, from[i]));
    for (uint64_t i = uint64_t{head} + vectors * length + lane; i < n; i += lanes) f(key_in(v, from[i]));
    for (uint64_t i = lane; i < vectors; i += deep * lanes) {
      vector16 x[deep];
#pragma unroll
      for (uint32_t k = 0; k < deep; ++k)
        if (i + k * lanes < vectors) x[k] = at[i + k * lanes];
#pragma unroll
      for (uint32_t k = 0; k < deep; ++k) {
        if (i + k * lanes >= vectors) continue;
#pragma unroll
        for (uint32_t c = 0; c < length; ++c) f(key_in(v, element_of<T>(x[k], c)));
      }
    }
  }

  // write_range by vectors. `from`: element `begin` of the values, or of the residual.
  template <class Block, class T>
  DR_HD static uint64_t write_from(Block& b, const view& v, const T* from, const unit_run& r, uint32_t begin,
                                   uint32_t end, const exact_rank& cut, uint64_t before) {
    constexpr uint32_t length = 16 / sizeof(T), own = 16;  // consecutive elements of a lane
    // Vectors are aligned, so the first may begin before the elements do.
    const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T));
    const uint64_t span = uint64_t{lead} + (end - begin);
    typename Block::template each<uint32_t> over, equal;
    typename Block::template each<uint64_t> places;
    for (uint64_t first = 0; first < span; first += uint64_t{own} * lanes) {
      b.phase([&](unsigned lane) {
        const uint64_t at = first + uint64_t{lane} * own, i = at - lead;
        over[lane] = equal[lane] = 0;
        const auto take = [&](uint32_t k, T number) {
          const uint32_t key = key_in(v, number);
          over[lane] |= (key > cut.key ? 1u : 0u) << k;
          equal[lane] |= (key == cut.key && key ? 1u : 0u) << k;
        };
        if (at >= lead && at + own <= span) {
          vector16 x[own / length];
#pragma unroll
          for (uint32_t q = 0; q < own / length; ++q) x[q] = reinterpret_cast<const vector16*>(from + i)[q];
#pragma unroll
          for (uint32_t k = 0; k < own; ++k) take(k, element_of<T>(x[k / length], k % length));
        } else {
          for (uint32_t k = 0; k < own; ++k)
            if (at + k >= lead && at + k < span) take(k, from[i + k]);
        }
        places[lane] = uint64_t{popcount(over[lane])} << 32 | popcount(equal[lane]);
      });
      const uint64_t all = b.exclusive_sum(places);
      b.phase([&](unsigned lane) {
        const uint64_t sum = before + places[lane], i = begin + first + uint64_t{lane} * own - lead;
        uint64_t above = sum >> 32, ties = static_cast<uint32_t>(sum);
        for (uint32_t left = over[lane] | equal[lane]; left; left &= left - 1) {
          const unsigned k = countr_zero(left);
          const bool is_above = over[lane] >> k & 1;
          if (is_above || ties < cut.ties)
            keep(v.common, v.unit, above + (ties < cut.ties ? ties : cut.ties), static_cast<uint32_t>(i + k),
                 stored<Bits>(v.common, r, i + k - r.first));
          above += is_above;
          ties += !is_above;
        }
      });
      before += all;
    }
    return before;
  }

  template <class Block>
  DR_HD static void write(Block& b, const view& v, uint32_t piece, uint32_t begin, uint32_t end, bool last) {
    const exact_rank cut = known(b, v, 3);
    typename Block::template each<uint64_t> sum;
    b.phase([&](unsigned lane) {
      sum[lane] = 0;
      for (uint32_t i = lane; i < piece; i += lanes) sum[lane] += v.counts()[i];
    });
    uint64_t all = b.sum(sum);
    each_run(v.unit, begin, end, [&](const unit_run& r, uint32_t from, uint32_t to) {
      all = r.residual ? write_from(b, v, r.residual + (from - r.first), r, from, to, cut, all)
                       : write_from(b, v, static_cast<const Bits*>(r.values) + (from - r.first), r, from, to, cut, all);
    });
    if (!last) return;
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(v.unit, selected_of(all, cut.ties));
    });
  }
};

}  // namespace dr
