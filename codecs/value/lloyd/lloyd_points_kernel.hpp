// What the CPU and a block of lanes share of the search for levels: bins of magnitudes, their points, cells of points, and
// the order in which cells are tried. The CPU's Fit is in lloyd_kernel.hpp, that of lanes in lloyd_fit_tile.hpp.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned lloyd_levels_max = 16;
inline constexpr unsigned lloyd_bins = 1024;
inline constexpr int lloyd_rounds = 60;
// Octaves below the largest magnitude that bins resolve: at least 16 bins an octave.
inline constexpr uint32_t lloyd_octaves = 48;
// Of many values one in eight is looked at, 64 together.
inline constexpr uint64_t lloyd_all = 65536, lloyd_group = 64, lloyd_apart = 512;

// The kind, a payload's first byte: with Huffman, levels − 1, magnitudes in the row's type.
inline constexpr unsigned lloyd_huffman_bit = 2, lloyd_count_shift = 2, lloyd_own_type_bit = 64, lloyd_kind_end = 128;

struct lloyd_levels {
  unsigned count;
  double numbers[lloyd_levels_max], weights[lloyd_levels_max];  // ascending; how many values have them
  uint32_t least[lloyd_levels_max];  // bits of the least magnitude of a level; the first has no bound
  double rounding;                   // bound of the rounding error, relative to the squared error
};

// ---- Bins ------------------------------------------------------------------------------------------------

// Magnitudes by their upper bits. A bin lies within an octave, where numbers are linear in their bits: so a count and a
// sum of the lower bits give its mean, exactly but where counts leave no room for all of them. Both are one word.
struct lloyd_binning {
  uint32_t floor, shift, first, used;  // smaller ones count as the floor
  unsigned sum_bits, count_shift;      // lower bits that are summed, and the position of a count

  // For up to `total` magnitudes in a range of bits.
  DR_HD static lloyd_binning of(uint32_t least, uint32_t largest, uint64_t total) {
    constexpr uint32_t span = lloyd_octaves << 23;
    lloyd_binning b{};
    b.floor = largest > span && largest - span > least ? largest - span : least;
    while ((largest >> b.shift) - (b.floor >> b.shift) >= lloyd_bins) ++b.shift;
    b.first = b.floor >> b.shift;
    b.used = (largest >> b.shift) - b.first + 1;
    b.count_shift = 64 - bit_width(total);
    // So a sum is below total · 2^sum_bits < 2^count_shift.
    const unsigned room = b.count_shift - bit_width(total);
    b.sum_bits = b.shift < room ? b.shift : room;
    return b;
  }
  // Of a magnitude that is not above the largest.
  DR_HD uint32_t bin_of(uint32_t m) const { return ((m > floor ? m : floor) >> shift) - first; }
  // What it adds to its bin's word.
  DR_HD uint64_t word_of(uint32_t m) const {
    const uint32_t low = (m > floor ? m : floor) & ((1u << shift) - 1);
    return uint64_t{1} << count_shift | low >> (shift - sum_bits);
  }
  DR_HD uint64_t counted(uint64_t word) const { return word >> count_shift; }
  DR_HD uint64_t summed(uint64_t word) const { return word & low_mask(count_shift); }
  DR_HD double mean(uint32_t bin, uint64_t count, uint64_t sum) const {
    const uint32_t base = (first + bin) << shift, cut = shift - sum_bits;
    // (Of one magnitude, the next might be infinite.)
    const double number = f32_type::to_f32(base), step = shift ? double{f32_type::to_f32(base + 1)} - number : 0;
    const auto unit = static_cast<double>(1u << cut);
    return number + step * (unit * (static_cast<double>(sum) / static_cast<double>(count)) + (unit - 1) / 2);
  }
};

// ---- Points and cells ------------------------------------------------------------------------------------

// log2 of a normal x > 0, to 1e-7: of m in [1, 2), with s = (m − 1) / (m + 1) <= 1/3, ln m = 2·(s + s³/3 + s⁵/5 + …).
DR_HD inline double lloyd_log2(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int k = 13; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return static_cast<double>(static_cast<int>(bits >> 52) - 1023) + 2 * s * sum / 0.6931471805599453;
}

// Where two cells instead of one have the least distortion, and by how much less.
struct lloyd_cut {
  unsigned at;
  double gain;
};
// Times the count n of a cell of this sum, of which the lower one has n1 and s1: with d = S₁·N − S·N₁ it is
// d² / (N₁·(N − N₁)).
DR_HD inline double lloyd_gain(double n, double sum, double n1, double s1) {
  const double d = s1 * n - sum * n1;
  return d * d / (n1 * (n - n1));
}
inline constexpr unsigned lloyd_no_cut = ~0u;

// The bins that hold something, as points, and cells of them: a level is the mean of its cell's points.
struct lloyd_points {
  unsigned size, levels;
  lloyd_binning bins;
  double origin;                  // sums are of what points are above the lowest
  double value[lloyd_bins];       // ascending
  double counts[lloyd_bins + 1];  // of the points before one, as the next two
  double sums[lloyd_bins + 1], squares[lloyd_bins + 1];
  uint16_t bin[lloyd_bins + 1], rank[lloyd_bins + 1];  // of a point; points before a bin
  unsigned ends[lloyd_levels_max + 1];                 // cells: points [ends[j], ends[j + 1]), none empty

  DR_HD double count_of(unsigned begin, unsigned end) const { return counts[end] - counts[begin]; }
  DR_HD double count_of(unsigned j) const { return count_of(ends[j], ends[j + 1]); }
  DR_HD double sum_of(unsigned begin, unsigned end) const { return sums[end] - sums[begin]; }
  DR_HD double mean_of(unsigned j) const { return origin + sum_of(ends[j], ends[j + 1]) / count_of(j); }
  DR_HD double distortion_of(unsigned j) const {
    const unsigned begin = ends[j], end = ends[j + 1];
    const double sum = sum_of(begin, end), d = squares[end] - squares[begin] - sum * (sum / count_of(begin, end));
    return 0 < d ? d : 0;
  }
  DR_HD double mean_square() const {
    const double n = counts[size];
    return origin * origin + (2 * origin * sums[size] + squares[size]) / n;
  }
  // Of a level of all values, at its entropy.
  DR_HD double length_of(unsigned j) const { return lloyd_log2(counts[size] / count_of(j)); }

  DR_HD void put_one() {
    levels = 1;
    ends[0] = 0;
    ends[1] = size;
  }
  // Splits the cell whose cut gains most. Returns the lower half, or lloyd_no_cut.
  DR_HD unsigned split(lloyd_cut* cuts) {
    unsigned best = 0;
    for (unsigned j = 1; j < levels; ++j)
      if (cuts[j].gain > cuts[best].gain) best = j;
    if (!(cuts[best].gain > 0)) return lloyd_no_cut;
    for (unsigned j = levels; j > best; --j) {
      ends[j + 1] = ends[j];
      if (j > best + 1) cuts[j] = cuts[j - 1];
    }
    ends[best + 1] = cuts[best].at;
    ++levels;
    return best;
  }
  // A crowd, and tails of a tenth, a thirtieth, … of the values.
  DR_HD void put_tails(unsigned requested) {
    const double n = counts[size];
    double tail = n / 10;
    levels = 0;
    for (unsigned from = 1; levels + 1 < requested; tail /= 3) {
      unsigned low = from, high = size;
      while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (counts[middle] >= n - tail)
          high = middle;
        else
          low = middle + 1;
      }
      if (low >= size) break;
      ends[++levels] = low;
      from = low + 1;
    }
    ends[++levels] = size;
  }

  // The first point that is not below a magnitude.
  DR_HD unsigned point_of(double magnitude) const {
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude));
    if (bits >> bins.shift < bins.first) return 0;
    const uint32_t b = (bits >> bins.shift) - bins.first;
    if (b >= bins.used) return size;
    const unsigned at = rank[b];
    return at < rank[b + 1] && value[at] < magnitude ? at + 1u : at;
  }
  // Where a level ends whose number and length in bits are the first of each, below the next one.
  DR_HD unsigned end_between(const double* numbers, const double* lengths, double price) const {
    const double apart = numbers[1] - numbers[0];
    const double threshold =
        (numbers[0] + numbers[1]) / 2 + (apart > 0 ? price * (lengths[1] - lengths[0]) / (2 * apart) : 0);
    if (!(threshold > 0)) return point_of(0);
    return point_of(threshold < f32_type::largest ? threshold : f32_type::largest);
  }
  // Cells end at end[j]; those that have nothing left are dropped. Whether all are as they were.
  DR_HD bool settle(const unsigned* end) {
    const unsigned before = levels;
    unsigned left = 0, last = 0;
    bool same = true;
    for (unsigned j = 0; j < before; ++j) {
      if (end[j] <= last) continue;
      last = end[j];
      ++left;
      same = same && ends[left] == last;
      ends[left] = last;
    }
    levels = left;
    return same && left == before;
  }

  // Level j, as it is used.
  DR_HD void tell(unsigned j, lloyd_levels& l) const {
    l.numbers[j] = mean_of(j);
    l.weights[j] = count_of(j);
    l.least[j] = (bins.first + bin[ends[j]]) << bins.shift;
  }
};

// Cells of points, to go back to: plain ones, and the best so far.
struct lloyd_kept {
  unsigned levels, ends[lloyd_levels_max + 1];

  DR_HD void take(const lloyd_points& p) {
    levels = p.levels;
    for (unsigned j = 0; j <= levels; ++j) ends[j] = p.ends[j];
  }
  DR_HD void put(lloyd_points& p) const {
    p.levels = levels;
    for (unsigned j = 0; j <= levels; ++j) p.ends[j] = ends[j];
  }
};
inline constexpr unsigned lloyd_plain = 0, lloyd_best = 1, lloyd_kinds_kept = 2;

// ---- The search --------------------------------------------------------------------------------------------

// Fit, the points of a search and its cells:
//   double one()            makes one cell; returns its distortion
//   void cut(j)             finds the best cut of cell j
//   unsigned split()        lloyd_points::split
//   bool step(price)        a round of the iteration; true: nothing has changed
//   double distortion(), bits(), count(), mean_square()
//   void tails(requested)   lloyd_points::put_tails
//   void keep(kind), put(kind)

// Cuts cells in two, always the one with the largest gain, until there are `requested` cells or no gain. From one cell.
template <class Fit>
DR_HD void lloyd_split(Fit& f, unsigned requested) {
  f.cut(0);
  for (unsigned levels = 2; levels <= requested; ++levels) {
    const unsigned at = f.split();
    if (at == lloyd_no_cut || levels == requested) return;
    f.cut(at);
    f.cut(at + 1);
  }
}

// Lloyd's iteration, in which a bit costs `price`. Returns the distortion.
template <class Fit>
DR_HD double lloyd_iterate(Fit& f, double price) {
  for (int round = 0; round < lloyd_rounds; ++round)
    if (f.step(price)) break;
  return f.distortion();
}

// Fewer bits for little more distortion than that of plain cells. Returns the distortion.
template <class Fit>
DR_HD double lloyd_save_bits(Fit& f, double plain) {
  // With fine levels the weight of a bit is 2·ln 2·D, because D falls to a quarter with each bit; with few levels, a
  // little more. Less, where rare values decide the distortion: it may grow by a quarter.
  double price = 1.55 * plain / f.count();
  for (int tries = 0; price > 0 && tries < 8; ++tries, price /= 2) {
    const double distortion = lloyd_iterate(f, price);
    if (distortion <= 1.25 * plain) return distortion;
    f.put(lloyd_plain);
  }
  return plain;
}

// The least of distortion + price · bits that is found, a price of `price` mean squares. Returns the distortion.
template <class Fit>
DR_HD double lloyd_pay_bits(Fit& f, unsigned requested, double price) {
  const double of_a_bit = price * f.mean_square();
  // One level has no bits.
  double best = f.one(), least = best + of_a_bit * f.bits();
  f.keep(lloyd_best);
  // Where a bit costs much, plain cells are far from the best ones, and the iteration stays near where it begins: so
  // also from a crowd and tails.
  for (int from = 0; from < 2; ++from) {
    if (from == 0)
      f.put(lloyd_plain);
    else
      f.tails(requested);
    const double distortion = lloyd_iterate(f, of_a_bit), found = distortion + of_a_bit * f.bits();
    if (!(found < least)) continue;
    f.keep(lloyd_best);
    best = distortion;
    least = found;
  }
  f.put(lloyd_best);
  return best;
}

// Finds cells of at most `requested` levels. price: of a bit per value, in mean squares; 0: saves bits if that costs
// little. Returns the bound of the rounding error.
template <class Fit>
DR_HD double lloyd_find_cells(Fit& f, unsigned requested, double price) {
  const double one = f.one();
  lloyd_split(f, requested);
  const double plain = lloyd_iterate(f, 0);
  f.keep(lloyd_plain);
  const double distortion = price > 0 ? lloyd_pay_bits(f, requested, price) : lloyd_save_bits(f, plain);
  const double share = distortion / 64, saved = one - distortion, bound = saved < share ? saved : share;
  return 0 < bound ? bound : 0;
}

// ---- What travels --------------------------------------------------------------------------------------------

// Levels as they travel: in bf16, or in the row's type where that rounds too coarsely.
struct lloyd_table {
  uint32_t count, number_size, own_type;
  uint32_t sent[lloyd_levels_max];  // bits of a number of number_size bytes
  uint32_t of[lloyd_levels_max];    // float bits of the number, decoded

  DR_HD uint8_t byte(unsigned i) const { return static_cast<uint8_t>(sent[i / number_size] >> (i % number_size * 8)); }
};
template <class T>
DR_HD void lloyd_put_table(const lloyd_levels& l, lloyd_table& t) {
  double rounding = 0;
  for (unsigned j = 0; j < l.count; ++j) {
    const double off = bf16_to_f32(f64_to_bf16(saturate<bf16_type>(l.numbers[j]))) - l.numbers[j];
    rounding += l.weights[j] * (off * off);
  }
  t.count = l.count;
  t.own_type = rounding > l.rounding && !std::is_same_v<T, bf16_type>;
  t.number_size = t.own_type ? sizeof(typename T::bits) : 2;
  const auto put = [&](auto type, unsigned j) {
    using N = decltype(type);
    const typename N::bits number = N::from_f64(saturate<N>(l.numbers[j]));
    t.sent[j] = number;
    t.of[j] = std::bit_cast<uint32_t>(T::to_f32(T::from_f64(saturate<T>(N::to_f32(number)))));
  };
  for (unsigned j = 0; j < l.count; ++j) {
    if (t.own_type)
      put(T{}, j);
    else
      put(bf16_type{}, j);
  }
}

// ---- The result ------------------------------------------------------------------------------------------

// Of magnitudes m, and their decoded values, times a power of two that brings them below 2: of each block in f32, lane
// i % 8, the lanes and then the blocks in f64.
struct lloyd_sums {
  float scale, origin;                     // near the magnitudes, after scaling
  double error = 0, sum = 0, squares = 0;  // Σ (m − got)², Σ (m − origin), Σ (m − origin)²

  DR_HD lloyd_sums(uint32_t largest, double number)
      : scale(scale_of(largest >> 23)), origin(static_cast<float>(number) * scale) {}
  static constexpr size_t lane_count = 8;
  struct lanes {
    float error[lane_count], sum[lane_count], squares[lane_count];
  };
  DR_HD void add(const lanes& l) {
    for (size_t k = 0; k < lane_count; ++k) {
      error += double{l.error[k]};
      sum += double{l.sum[k]};
      squares += double{l.squares[k]};
    }
  }
  // False also where roundings hide it: 512 of a lane are below 2^-14 of the sum.
  DR_HD bool surely_better_than_one(uint64_t n) const {
    return error + squares * 0x1p-12 < squares - sum * (sum / static_cast<double>(n));
  }

 private:
  DR_HD static float scale_of(uint32_t exponent) {
    return std::bit_cast<float>((254 - (exponent < 1 ? 1 : exponent > 253 ? 253 : exponent)) << 23);
  }
};

}  // namespace dr
