// The search for levels by a block of lanes. Lanes share the points and the levels; a sum that decides a byte has one lane
// that adds in the CPU's order.
#pragma once

#include <cstdint>

#include "codecs/value/lloyd/lloyd_points_kernel.hpp"
#include "primitive/block.hpp"

namespace dr {

struct lloyd_fit_shared {
  lloyd_points points;
  lloyd_cut cuts[lloyd_levels_max];
  lloyd_kept kept[lloyd_kinds_kept];
  double numbers[lloyd_levels_max], lengths[lloyd_levels_max];
  unsigned end[lloyd_levels_max];
};

// The points of bins. A count in a bin up to `top` means `weight` values, else one. (lloyd_histogram::tell)
template <class Block>
DR_HD void take_lloyd_points(Block& b, lloyd_points& p, const uint64_t* const& words, const lloyd_binning& bins,
                             const uint32_t& top, const double& weight) {
  constexpr unsigned own = lloyd_bins / Block::lanes, warp = 32;
  typename Block::template each<uint32_t> before;
  b.phase([&](unsigned lane) {
    before[lane] = 0;
    for (unsigned k = 0; k < own; ++k) before[lane] += words[lane * own + k] != 0;
  });
  const uint32_t size = b.exclusive_sum(before);
  b.phase([&](unsigned lane) {
    uint32_t at = before[lane];
    for (unsigned k = 0; k < own; ++k) {
      const uint32_t bin = lane * own + k;
      const uint64_t word = words[bin], count = bins.counted(word);
      p.rank[bin] = static_cast<uint16_t>(at);
      if (count == 0) continue;
      p.bin[at] = static_cast<uint16_t>(bin);
      p.value[at] = bins.mean(bin, count, bins.summed(word));
      p.counts[++at] = static_cast<double>(count) * (bin <= top ? weight : 1);
    }
    if (lane != 0) return;
    p.rank[lloyd_bins] = static_cast<uint16_t>(size);
    p.size = size;
    p.bins = bins;
    p.counts[0] = p.sums[0] = p.squares[0] = 0;
  });
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < size; i += Block::lanes) {
      const double c = p.counts[i + 1], y = p.value[i] - p.value[0];
      p.sums[i + 1] = c * y;
      p.squares[i + 1] = c * (y * y);
    }
    if (lane == 0) p.origin = p.value[0];
  });
  // One lane a chain, of different warps: sums in another order are other sums, and other levels.
  b.phase([&](unsigned lane) {
    if (lane % warp != 0 || lane / warp >= 3) return;
    double* const chain = lane == 0 ? p.counts : lane == warp ? p.sums : p.squares;
    double sum = 0;
    for (uint32_t i = 1; i <= size; ++i) chain[i] = sum += chain[i];
  });
}

// The Fit of lloyd_points_kernel.hpp.
template <class Block>
class lloyd_block_fit {
 public:
  DR_HD lloyd_block_fit(Block& b, lloyd_fit_shared& s) : b_(b), s_(s) {}

  DR_HD double one() {
    on_one([&] { s_.points.put_one(); });
    return distortion();
  }
  DR_HD void cut(unsigned j) {
    typename Block::template each<double> gain;
    typename Block::template each<uint32_t> at;
    const lloyd_points& p = s_.points;
    b_.phase([&](unsigned lane) {
      const unsigned begin = p.ends[j], end = p.ends[j + 1];
      const double n = p.count_of(begin, end), sum = p.sum_of(begin, end);
      gain[lane] = 0;
      at[lane] = begin;
      for (unsigned i = begin + 1 + lane; i < end; i += Block::lanes) {
        const double own = lloyd_gain(n, sum, p.counts[i] - p.counts[begin], p.sums[i] - p.sums[begin]);
        if (!(own > gain[lane])) continue;
        gain[lane] = own;
        at[lane] = i;
      }
    });
    const double most = b_.max(gain);
    b_.phase([&](unsigned lane) {
      if (gain[lane] != most) at[lane] = ~0u;
    });
    const uint32_t first = b_.min(at);  // where there is no gain, all are where the cell begins
    on_one([&] { s_.cuts[j] = {first, most / p.count_of(j)}; });
  }
  DR_HD unsigned split() {
    return b_.template once<uint32_t>([&] { return s_.points.split(s_.cuts); });
  }
  DR_HD bool step(double price) {
    lloyd_points& p = s_.points;
    b_.phase([&](unsigned lane) {
      if (lane >= p.levels) return;
      s_.numbers[lane] = p.mean_of(lane);
      s_.lengths[lane] = price > 0 ? p.length_of(lane) : 0;
    });
    b_.phase([&](unsigned lane) {
      if (lane >= p.levels) return;
      s_.end[lane] =
          lane + 1 < p.levels ? p.end_between(s_.numbers + lane, s_.lengths + lane, price) : unsigned{p.size};
    });
    return b_.template once<uint32_t>([&] { return p.settle(s_.end); }) != 0;
  }
  DR_HD double distortion() {
    return sum_of_levels([](const lloyd_points& p, unsigned j) { return p.distortion_of(j); });
  }
  DR_HD double bits() {
    return sum_of_levels([](const lloyd_points& p, unsigned j) { return p.count_of(j) * p.length_of(j); });
  }
  DR_HD double count() {
    return b_.template once<double>([&] { return s_.points.counts[s_.points.size]; });
  }
  DR_HD double mean_square() {
    return b_.template once<double>([&] { return s_.points.mean_square(); });
  }
  DR_HD void tails(unsigned requested) {
    on_one([&] { s_.points.put_tails(requested); });
  }
  DR_HD void keep(unsigned kind) {
    on_one([&] { s_.kept[kind].take(s_.points); });
  }
  DR_HD void put(unsigned kind) {
    on_one([&] { s_.kept[kind].put(s_.points); });
  }

 private:
  template <class F>
  DR_HD void on_one(F&& f) {
    b_.phase([&](unsigned lane) {
      if (lane == 0) f();
    });
  }
  // In the order of levels.
  template <class F>
  DR_HD double sum_of_levels(F&& term) {
    const lloyd_points& p = s_.points;
    b_.phase([&](unsigned lane) {
      if (lane < p.levels) s_.numbers[lane] = term(p, lane);
    });
    return b_.template once<double>([&] {
      double all = 0;
      for (unsigned j = 0; j < p.levels; ++j) all += s_.numbers[j];
      return all;
    });
  }

  Block& b_;
  lloyd_fit_shared& s_;
};

}  // namespace dr
