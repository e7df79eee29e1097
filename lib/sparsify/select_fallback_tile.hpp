// If the estimate of the sample failed (constant or adversarial data): radix over all elements, in one launch.
#pragma once

#include <cstdint>

#include "sparsify/select_read_tile.hpp"

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
      if (u.solved() || u.kind != select_largest_kind) continue;
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
    b.phase([&](unsigned lane) {
      count_keys(s.hist, r.key, shift, bits, [&](auto&& count) {
        each_key(v, begin, end, lane, [&](uint32_t key) {
          if (key) count(key);
        });
      });
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

  // Calls f(key) for a lane's part of the elements [begin, end), in any order.
  template <class F>
  DR_HD static void each_key(const view& v, uint32_t begin, uint32_t end, unsigned lane, F&& f) {
    each_run(v.unit, begin, end,
             [&](const unit_run& r, uint32_t from, uint32_t to) { each_key_of<lanes>(v, r, from, to, lane, f); });
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
    each_run(v.unit, begin, end,
             [&](const unit_run& r, uint32_t from, uint32_t to) { all = write_run(b, v, r, from, to, cut, all); });
    if (!last) return;
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(v.unit, selected_of(all, cut.ties));
    });
  }
};

}  // namespace dr
