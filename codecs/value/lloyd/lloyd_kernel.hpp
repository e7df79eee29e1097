// A few levels that suit the values: Lloyd's iteration (Lloyd 1982, Max 1960) on a histogram, with a price for bits
// (entropy-constrained: Chou, Lookabaugh, Gray 1989).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codecs/family/levels/table_levels.hpp"

namespace dr {

inline constexpr unsigned lloyd_levels_max = 16;
inline constexpr unsigned lloyd_bins = 1024;
inline constexpr int lloyd_rounds = 60;
// Octaves below the largest magnitude that bins resolve: at least 16 bins an octave.
inline constexpr uint32_t lloyd_octaves = 48;

struct lloyd_levels {
  unsigned count = 0;
  double numbers[lloyd_levels_max], weights[lloyd_levels_max];  // ascending; how many values have them
  level_bounds bounds;
  double rounding;  // bound of the rounding error, relative to the squared error

  void bound(unsigned level, uint32_t least) { bounds.of[level - 1] = least; }
  void clear() {
    count = 0;
    for (uint32_t& b : bounds.of) b = ~0u;
  }
  void finish() { bounds.count = static_cast<unsigned>(bit_ceil(count < 2 ? 2 : count)); }
};

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
    l.clear();
    l.count = count;
    l.rounding = 0;
    for (unsigned j = 0; j < count; ++j) {
      l.numbers[j] = double{f32_type::to_f32(of[j])};
      l.weights[j] = 1;
      if (j) l.bound(j, of[j]);
    }
    l.finish();
  }
};

// ---- Histogram ---------------------------------------------------------------------------------------------

// Magnitudes by their upper bits. A bin lies within an octave, where numbers are linear in their bits: so a count and a
// sum of the lower bits give its mean, exactly but where counts leave no room for all of them.
struct lloyd_histogram {
  uint32_t floor, shift = 0, first, used;  // smaller ones count as the floor
  unsigned sum_bits, count_shift;          // lower bits that are summed, and the position of a count
  uint64_t halves[2][lloyd_bins];          // of even and of odd values, so that neighbours in one bin need not wait

  // For up to `total` magnitudes in a range of bits.
  lloyd_histogram(uint32_t least, uint32_t largest, uint64_t total)
      : floor(largest > lloyd_octaves << 23 ? std::max(least, largest - (lloyd_octaves << 23)) : least) {
    while ((largest >> shift) - (floor >> shift) >= lloyd_bins) ++shift;
    first = floor >> shift;
    used = (largest >> shift) - first + 1;
    count_shift = 64 - bit_width(total);
    sum_bits = std::min(shift, count_shift - bit_width(total));  // so a sum is below total · 2^sum_bits < 2^count_shift
    for (auto& half : halves) std::fill_n(half, used, 0);
  }
  void add(const uint32_t* values, size_t n) {
    constexpr size_t some = 64;
    const auto lowest = static_cast<int32_t>(floor), base = static_cast<int32_t>(first << shift);
    const uint32_t right = shift, cut = shift - sum_bits, low = (1u << shift) - 1;
    const uint64_t counted = uint64_t{1} << count_shift;
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
      if (bin_of(values[i] & f32_type::magnitude_mask) > top) add(values + i, 1);
  }
  uint32_t top() const {
    uint32_t bin = used;
    while (bin > 0 && counted(bin - 1) == 0) --bin;
    return bin ? bin - 1 : 0;
  }
  // Of a magnitude that is not above the largest.
  uint32_t bin_of(uint32_t m) const { return (std::max(m, floor) >> shift) - first; }
  uint64_t counted(uint32_t bin) const { return (halves[0][bin] >> count_shift) + (halves[1][bin] >> count_shift); }
  double mean(uint32_t bin) const {
    const uint64_t mask = low_mask(count_shift);
    const auto sum = static_cast<double>((halves[0][bin] & mask) + (halves[1][bin] & mask));
    const uint32_t base = (first + bin) << shift, cut = shift - sum_bits;
    // (Of one magnitude, the next might be infinite.)
    const double number = f32_type::to_f32(base), step = shift ? double{f32_type::to_f32(base + 1)} - number : 0;
    const auto unit = static_cast<double>(1u << cut);
    return number + step * (unit * (sum / static_cast<double>(counted(bin))) + (unit - 1) / 2);
  }
};

// ---- Levels ------------------------------------------------------------------------------------------------

// log2 of a normal x > 0, to 1e-7: of m in [1, 2), with s = (m − 1) / (m + 1) <= 1/3, ln m = 2·(s + s³/3 + s⁵/5 + …).
inline double lloyd_log2(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int k = 13; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return static_cast<double>(static_cast<int>(bits >> 52) - 1023) + 2 * s * sum / 0.6931471805599453;
}

// The bins that hold something, as points, and cells of them: a level is the mean of its cell's points.
struct lloyd_points {
  unsigned size = 0, levels = 0;
  uint32_t least, shift, first, used;
  double origin = 0;         // sums are of what points are above the lowest
  double value[lloyd_bins];  // ascending
  double counts[lloyd_bins + 1], sums[lloyd_bins + 1], squares[lloyd_bins + 1];  // of the points before one
  uint16_t bin[lloyd_bins + 1], rank[lloyd_bins + 1];                            // of a point; points before a bin
  unsigned ends[lloyd_levels_max + 1] = {0};  // cells: points [ends[j], ends[j + 1]), none empty

  // A count in a bin up to `top` means `weight` values, else one.
  lloyd_points(const lloyd_histogram& h, uint32_t top, double weight)
      : least(h.floor), shift(h.shift), first(h.first), used(h.used) {
    for (uint32_t b = 0; b < h.used; ++b) {  // without a branch, which would be unpredictable
      rank[b] = static_cast<uint16_t>(size);
      bin[size] = static_cast<uint16_t>(b);
      size += h.counted(b) != 0;
    }
    rank[h.used] = static_cast<uint16_t>(size);
    origin = h.mean(bin[0]);
    counts[0] = sums[0] = squares[0] = 0;
    for (unsigned i = 0; i < size; ++i) {
      const double c = static_cast<double>(h.counted(bin[i])) * (bin[i] <= top ? weight : 1),
                   y = (value[i] = h.mean(bin[i])) - origin;
      counts[i + 1] = counts[i] + c;
      sums[i + 1] = sums[i] + c * y;
      squares[i + 1] = squares[i] + c * (y * y);
    }
  }

  double count_of(unsigned begin, unsigned end) const { return counts[end] - counts[begin]; }
  double sum_of(unsigned begin, unsigned end) const { return sums[end] - sums[begin]; }
  double mean_of(unsigned j) const { return origin + sum_of(ends[j], ends[j + 1]) / count_of(ends[j], ends[j + 1]); }
  double distortion_of(unsigned begin, unsigned end) const {
    const double sum = sum_of(begin, end);
    return std::max(0.0, squares[end] - squares[begin] - sum * (sum / count_of(begin, end)));
  }
  double distortion() const {
    double all = 0;
    for (unsigned j = 0; j < levels; ++j) all += distortion_of(ends[j], ends[j + 1]);
    return all;
  }

  double mean_square() const {
    const double n = counts[size];
    return origin * origin + (2 * origin * sums[size] + squares[size]) / n;
  }
  // Of the levels of all values, at their entropy.
  double bits() const {
    double all = 0;
    for (unsigned j = 0; j < levels; ++j) {
      const double c = count_of(ends[j], ends[j + 1]);
      all += c * lloyd_log2(counts[size] / c);
    }
    return all;
  }

  // The first point that is not below a magnitude.
  unsigned point_of(double magnitude) const {
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude));
    if (bits >> shift < first) return 0;
    const uint32_t b = (bits >> shift) - first;
    if (b >= used) return size;
    const unsigned at = rank[b];
    return at < rank[b + 1] && value[at] < magnitude ? at + 1u : at;
  }

  // Where two cells instead of one have the least distortion, and by how much less. With d = S₁·N − S·N₁ of the
  // lower one, it is d² / (N·N₁·(N − N₁)).
  struct cut {
    unsigned at = 0;
    double gain = 0;
  };
  cut best_cut(unsigned begin, unsigned end) const {
    const double n = count_of(begin, end), sum = sum_of(begin, end);
    double gain[lloyd_bins];  // by itself, so that several are had at once
    for (unsigned i = begin + 1; i < end; ++i) {
      const double n1 = counts[i] - counts[begin], d = (sums[i] - sums[begin]) * n - sum * n1;
      gain[i] = d * d / (n1 * (n - n1));
    }
    cut best{begin, 0};
    for (unsigned i = begin + 1; i < end; ++i)
      if (gain[i] > best.gain) best = {i, gain[i]};
    best.gain /= n;
    return best;
  }
  // Cuts cells in two, always the one with the largest gain, until there are `requested` cells or no gain.
  void split(unsigned requested) {
    cut cuts[lloyd_levels_max];
    for (unsigned j = 0; j < levels; ++j) cuts[j] = best_cut(ends[j], ends[j + 1]);
    while (levels < requested) {
      unsigned best = 0;
      for (unsigned j = 1; j < levels; ++j)
        if (cuts[j].gain > cuts[best].gain) best = j;
      if (!(cuts[best].gain > 0)) return;
      for (unsigned j = levels; j > best; --j) {
        ends[j + 1] = ends[j];
        if (j > best + 1) cuts[j] = cuts[j - 1];
      }
      ends[best + 1] = cuts[best].at;
      ++levels;
      if (levels == requested) return;
      for (const unsigned j : {best, best + 1}) cuts[j] = best_cut(ends[j], ends[j + 1]);
    }
  }

  // Lloyd's iteration, in which a bit costs `price`. Returns the distortion.
  double iterate(double price) {
    for (int round = 0; round < lloyd_rounds; ++round) {
      double numbers[lloyd_levels_max], lengths[lloyd_levels_max];
      for (unsigned j = 0; j < levels; ++j) {
        numbers[j] = mean_of(j);
        lengths[j] = price > 0 ? lloyd_log2(counts[size] / count_of(ends[j], ends[j + 1])) : 0;
      }
      unsigned next[lloyd_levels_max + 1] = {0}, left = 0;
      for (unsigned j = 0; j < levels; ++j) {
        unsigned end = size;
        if (j + 1 < levels) {
          const double apart = numbers[j + 1] - numbers[j];
          const double threshold =
              (numbers[j] + numbers[j + 1]) / 2 + (apart > 0 ? price * (lengths[j + 1] - lengths[j]) / (2 * apart) : 0);
          end = point_of(threshold > 0 ? std::min(threshold, f32_type::largest) : 0);
        }
        if (end > next[left]) next[++left] = end;  // else nothing is left of the level
      }
      const bool same = left == levels && std::equal(next, next + left, ends);
      levels = left;
      std::copy_n(next, left + 1, ends);
      if (same) break;
    }
    return distortion();
  }
};

// Cells of points, to go back to.
struct lloyd_cells {
  unsigned levels, ends[lloyd_levels_max + 1];
  double distortion;

  lloyd_cells(const lloyd_points& p, double of_them) : levels(p.levels), distortion(of_them) {
    std::copy_n(p.ends, levels + 1, ends);
  }
  void put(lloyd_points& p) const {
    p.levels = levels;
    std::copy_n(ends, levels + 1, p.ends);
  }
};

// Fewer bits for little more distortion. Returns the distortion.
inline double lloyd_save_bits(lloyd_points& p, const lloyd_cells& plain) {
  // With fine levels the weight of a bit is 2·ln 2·D, because D falls to a quarter with each bit; with few levels, a
  // little more. Less, where rare values decide the distortion: it may grow by a quarter.
  double price = 1.55 * plain.distortion / p.counts[p.size];
  for (int tries = 0; price > 0 && tries < 8; ++tries, price /= 2) {
    const double distortion = p.iterate(price);
    if (distortion <= 1.25 * plain.distortion) return distortion;
    plain.put(p);
  }
  return plain.distortion;
}

// The least of distortion + price · bits that is found, a price of `price` mean squares. Returns the distortion.
inline double lloyd_pay_bits(lloyd_points& p, unsigned requested, const lloyd_cells& plain, double price) {
  const double n = p.counts[p.size], of_a_bit = price * p.mean_square();
  const auto cost = [&](double distortion) { return distortion + of_a_bit * p.bits(); };
  // One level has no bits.
  p.levels = 1;
  p.ends[1] = p.size;
  lloyd_cells best(p, p.distortion());
  double least = cost(best.distortion);
  const auto go = [&] {
    const double distortion = p.iterate(of_a_bit), found = cost(distortion);
    if (found < least) best = lloyd_cells(p, distortion), least = found;
  };
  plain.put(p);
  go();
  // Where a bit costs much, plain cells are far from the best ones, and the iteration stays near where it begins: so
  // also from a crowd and tails of a tenth, a thirtieth, … of the values.
  p.levels = 0;
  double tail = n / 10;
  for (unsigned i = 1; i < p.size && p.levels + 1 < requested; ++i)
    if (p.counts[i] >= n - tail) p.ends[++p.levels] = i, tail /= 3;
  p.ends[++p.levels] = p.size;
  go();
  best.put(p);
  return best.distortion;
}

// At most `requested` levels. price: of a bit per value, in mean squares; 0: saves bits if that costs little.
inline void lloyd_levels_of(lloyd_points& p, unsigned requested, double price, lloyd_levels& l) {
  p.levels = 1;
  p.ends[1] = p.size;
  const double one = p.distortion_of(0, p.size);
  p.split(requested);
  const double reached = p.iterate(0);
  const lloyd_cells plain(p, reached);
  const double distortion = price > 0 ? lloyd_pay_bits(p, requested, plain, price) : lloyd_save_bits(p, plain);
  l.clear();
  l.count = p.levels;
  for (unsigned j = 0; j < p.levels; ++j) {
    l.numbers[j] = p.mean_of(j);
    l.weights[j] = p.count_of(p.ends[j], p.ends[j + 1]);
    if (j) l.bound(j, (p.first + p.bin[p.ends[j]]) << p.shift);
  }
  l.rounding = std::max(0.0, std::min(distortion / 64, one - distortion));
  l.finish();
}

// ---- The result ------------------------------------------------------------------------------------------

// Of magnitudes m, and their decoded values, times a power of two that brings them below 2: of each block in f32, lane
// i % 8, the lanes and then the blocks in f64.
struct lloyd_sums {
  float scale, origin;                     // near the magnitudes, after scaling
  double error = 0, sum = 0, squares = 0;  // Σ (m − got)², Σ (m − origin), Σ (m − origin)²

  lloyd_sums(uint32_t largest, double number)
      : scale(std::bit_cast<float>((254 - std::clamp<uint32_t>(largest >> 23, 1, 253)) << 23)),
        origin(static_cast<float>(number) * scale) {}
  struct lanes {
    float error[8], sum[8], squares[8];
  };
  void add(const lanes& l) {
    for (size_t k = 0; k < 8; ++k) {
      error += double{l.error[k]};
      sum += double{l.sum[k]};
      squares += double{l.squares[k]};
    }
  }
  // False also where roundings hide it: 512 of a lane are below 2^-14 of the sum.
  bool surely_better_than_one(uint64_t n) const {
    return error + squares * 0x1p-12 < squares - sum * (sum / static_cast<double>(n));
  }
};
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
