// A few levels that suit the values: Lloyd's iteration (Lloyd 1982, Max 1960) on a histogram, with a price for bits
// (entropy-constrained: Chou, Lookabaugh, Gray 1989). The CPU's side.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codecs/family/levels/table_levels.hpp"
#include "codecs/value/lloyd/lloyd_points_kernel.hpp"

namespace dr {

// ---- Few magnitudes ----------------------------------------------------------------------------------------

// The distinct magnitudes in order of appearance, until there are more than requested.
struct lloyd_few {
  unsigned requested, count = 0;
  uint32_t of[lloyd_levels_max] = {};  // ascending
  uint32_t last = ~0u;

  // False if there are too many.
  bool add(const uint32_t* values, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t m = values[i] & f32_type::magnitude_mask;
      if (m == last) continue;
      last = m;
      unsigned at = 0;
      while (at < count && of[at] < m) ++at;
      if (at < count && of[at] == m) continue;
      if (count == requested) return false;
      for (unsigned k = count++; k > at; --k) of[k] = of[k - 1];
      of[at] = m;
    }
    return true;
  }
  // One level per magnitude.
  void tell(lloyd_levels& l) const {
    l.count = count;
    l.rounding = 0;
    for (unsigned j = 0; j < count; ++j) {
      l.numbers[j] = double{f32_type::to_f32(of[j])};
      l.weights[j] = 1;
      l.least[j] = of[j];
    }
  }
};

// ---- Histogram ---------------------------------------------------------------------------------------------

struct lloyd_histogram {
  lloyd_binning bins;
  uint64_t halves[2][lloyd_bins];  // of even and of odd values, so that neighbours in one bin need not wait

  // For up to `total` magnitudes in a range of bits.
  lloyd_histogram(uint32_t least, uint32_t largest, uint64_t total) : bins(lloyd_binning::of(least, largest, total)) {
    for (auto& half : halves) std::fill_n(half, bins.used, 0);
  }
  void add(const uint32_t* values, size_t n) {
    constexpr size_t some = 64;
    const auto lowest = static_cast<int32_t>(bins.floor), base = static_cast<int32_t>(bins.first << bins.shift);
    const uint32_t right = bins.shift, cut = bins.shift - bins.sum_bits, low = (1u << right) - 1;
    const uint64_t counted = uint64_t{1} << bins.count_shift;
    for (size_t begin = 0; begin < n; begin += some) {
      // Apart, so that it is done for several at once.
      uint32_t above[some], bin[some];
      const size_t length = n - begin < some ? n - begin : some;
      for (size_t i = 0; i < length; ++i) {
        const auto m = static_cast<int32_t>(values[begin + i] & f32_type::magnitude_mask);
        above[i] = static_cast<uint32_t>((m > lowest ? m : lowest) - base);
      }
      for (size_t i = 0; i < length; ++i) bin[i] = above[i] >> right;
      for (size_t i = 0; i < length; ++i) above[i] = (above[i] & low) >> cut;
      size_t i = 0;
      for (; i + 2 <= length; i += 2) {
        halves[0][bin[i]] += counted | above[i];
        halves[1][bin[i + 1]] += counted | above[i + 1];
      }
      if (i < length) halves[0][bin[i]] += counted | above[i];
    }
  }
  // Of magnitudes above the last bin that has one so far; `top`: that bin.
  void add_above(const uint32_t* values, size_t n, uint32_t top) {
    for (size_t i = 0; i < n; ++i)
      if (bins.bin_of(values[i] & f32_type::magnitude_mask) > top) add(values + i, 1);
  }
  uint32_t top() const {
    uint32_t bin = bins.used;
    while (bin > 0 && word(bin - 1) == 0) --bin;
    return bin ? bin - 1 : 0;
  }
  // (The sums of both halves have room for all.)
  uint64_t word(uint32_t bin) const { return halves[0][bin] + halves[1][bin]; }

  // The points. A count in a bin up to `top` means `weight` values, else one.
  void tell(uint32_t top, double weight, lloyd_points& p) const {
    p.bins = bins;
    p.size = p.levels = 0;
    for (uint32_t b = 0; b < bins.used; ++b) {  // without a branch, which would be unpredictable
      p.rank[b] = static_cast<uint16_t>(p.size);
      p.bin[p.size] = static_cast<uint16_t>(b);
      p.size += word(b) != 0;
    }
    p.rank[bins.used] = static_cast<uint16_t>(p.size);
    p.counts[0] = p.sums[0] = p.squares[0] = 0;
    for (unsigned i = 0; i < p.size; ++i) {
      const uint64_t held = word(p.bin[i]), count = bins.counted(held);
      p.value[i] = bins.mean(p.bin[i], count, bins.summed(held));
      if (i == 0) p.origin = p.value[0];
      const double c = static_cast<double>(count) * (p.bin[i] <= top ? weight : 1), y = p.value[i] - p.origin;
      p.counts[i + 1] = p.counts[i] + c;
      p.sums[i + 1] = p.sums[i] + c * y;
      p.squares[i + 1] = p.squares[i] + c * (y * y);
    }
  }
};

// ---- Levels ------------------------------------------------------------------------------------------------

// The Fit of lloyd_points_kernel.hpp.
struct lloyd_fit {
  lloyd_points points;
  lloyd_cut cuts[lloyd_levels_max];
  lloyd_kept kept[lloyd_kinds_kept];

  double one() {
    points.put_one();
    return distortion();
  }
  void cut(unsigned j) {
    const lloyd_points& p = points;
    const unsigned begin = p.ends[j], end = p.ends[j + 1];
    const double n = p.count_of(begin, end), sum = p.sum_of(begin, end);
    double gain[lloyd_bins];  // by itself, so that several are had at once
    for (unsigned i = begin + 1; i < end; ++i)
      gain[i] = lloyd_gain(n, sum, p.counts[i] - p.counts[begin], p.sums[i] - p.sums[begin]);
    lloyd_cut best{begin, 0};
    for (unsigned i = begin + 1; i < end; ++i)
      if (gain[i] > best.gain) best = {i, gain[i]};
    best.gain /= n;
    cuts[j] = best;
  }
  unsigned split() { return points.split(cuts); }
  bool step(double price) {
    lloyd_points& p = points;
    double numbers[lloyd_levels_max], lengths[lloyd_levels_max];
    for (unsigned j = 0; j < p.levels; ++j) {
      numbers[j] = p.mean_of(j);
      lengths[j] = price > 0 ? p.length_of(j) : 0;
    }
    unsigned end[lloyd_levels_max];
    for (unsigned j = 0; j + 1 < p.levels; ++j) end[j] = p.end_between(numbers + j, lengths + j, price);
    end[p.levels - 1] = p.size;
    return p.settle(end);
  }
  double distortion() const {
    double all = 0;
    for (unsigned j = 0; j < points.levels; ++j) all += points.distortion_of(j);
    return all;
  }
  double bits() const {
    double all = 0;
    for (unsigned j = 0; j < points.levels; ++j) all += points.count_of(j) * points.length_of(j);
    return all;
  }
  double count() const { return points.counts[points.size]; }
  double mean_square() const { return points.mean_square(); }
  void tails(unsigned requested) { points.put_tails(requested); }
  void keep(unsigned kind) { kept[kind].take(points); }
  void put(unsigned kind) { kept[kind].put(points); }
};

// At most `requested` levels.
inline void lloyd_levels_of(lloyd_fit& fit, unsigned requested, double price, lloyd_levels& l) {
  l.rounding = lloyd_find_cells(fit, requested, price);
  l.count = fit.points.levels;
  for (unsigned j = 0; j < l.count; ++j) fit.points.tell(j, l);
}

// ---- The result ------------------------------------------------------------------------------------------

inline void lloyd_check_scalar(const uint32_t* values, const uint32_t* got, size_t n, lloyd_sums& sums) {
  lloyd_sums::lanes l{};
  for (size_t i = 0; i < n; ++i) {
    const float v = f32_type::to_f32(values[i]) * sums.scale, e = v - f32_type::to_f32(got[i]) * sums.scale,
                y = std::fabs(v) - sums.origin;
    l.error[i % 8] += e * e;
    l.sum[i % 8] += y;
    l.squares[i % 8] += y * y;
  }
  sums.add(l);
}
void lloyd_check_avx2(const uint32_t* values, const uint32_t* got, size_t n, lloyd_sums& sums);
inline constexpr cpu_table<decltype(&lloyd_check_scalar)> lloyd_check{lloyd_check_scalar, on_x86(lloyd_check_avx2)};

}  // namespace dr
