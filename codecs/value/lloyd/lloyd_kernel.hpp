// A few levels that suit the values: Lloyd's iteration (Lloyd 1982, Max 1960) on a histogram, with a price for bits (entropy-constrained:
// Chou, Lookabaugh, Gray 1989).
#pragma once

#include <cmath>
#include <cstdint>

#include "primitive/table_levels.hpp"

namespace dr {

inline constexpr unsigned lloyd_levels_max = 16;
inline constexpr unsigned lloyd_bins = 1024;

// Magnitudes by the upper bits of what their bits are above the least one's: bins of equal width within an octave.
struct lloyd_histogram {
  uint32_t least = 0, shift = 0;
  uint32_t counts[lloyd_bins] = {};

  lloyd_histogram(uint32_t least, uint32_t most) : least(least) {
    while ((most - least) >> shift >= lloyd_bins) ++shift;
  }
  void add(const uint32_t* values, size_t n) {
    for (size_t i = 0; i < n; ++i) ++counts[((values[i] & f32_type::magnitude_mask) - least) >> shift];
  }
  double middle(unsigned bin) const {
    const uint32_t half = shift ? 1u << (shift - 1) : 0;
    return double{f32_type::to_f32(least + (bin << shift) + half)};
  }
  // The first bin that is not below a magnitude.
  unsigned bin_of(double magnitude) const {
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude));
    if (bits <= least) return 0;
    const uint32_t bin = (bits - least - 1) >> shift;
    return bin < lloyd_bins - 1 ? bin + 1 : lloyd_bins;
  }
};

// log2 of a normal x > 0, to 1e-7: of m in [1, 2), with s = (m − 1) / (m + 1) <= 1/3, ln m = 2·(s + s³/3 + s⁵/5 + …).
inline double lloyd_log2(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double sum = 0;
  for (int k = 13; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return static_cast<double>(static_cast<int>(bits >> 52) - 1023) + 2 * s * sum / 0.6931471805599453;
}

struct lloyd_levels {
  unsigned count = 1;
  uint16_t numbers[lloyd_levels_max] = {};  // bf16, ascending
  level_bounds bounds;
};

// At most `wanted` levels, for a histogram that has counted something.
inline lloyd_levels lloyd_levels_of(const lloyd_histogram& h, unsigned wanted) {
  // Of the bins before bin i: counts, sums, sums of squares.
  double counts[lloyd_bins + 1], sums[lloyd_bins + 1], squares[lloyd_bins + 1], spread[lloyd_bins + 1];
  counts[0] = sums[0] = squares[0] = spread[0] = 0;
  for (unsigned i = 0; i < lloyd_bins; ++i) {
    const double c = h.counts[i], x = c > 0 ? h.middle(i) : 0;
    counts[i + 1] = counts[i] + c;
    sums[i + 1] = sums[i] + c * x;
    squares[i + 1] = squares[i] + c * x * x;
    // A density between the values' and its cube root, which is the best levels' (Panter, Dite 1951).
    spread[i + 1] = spread[i] + std::sqrt(c * (c > 0 ? h.middle(i) : 0));
  }
  unsigned ends[lloyd_levels_max + 1] = {0}, levels = 0;
  for (unsigned j = 1, i = 0; j <= wanted; ++j) {
    while (i < lloyd_bins && (j == wanted || spread[i] * wanted < spread[lloyd_bins] * j)) ++i;
    if (counts[i] > counts[ends[levels]]) ends[++levels] = i;
  }
  double numbers[lloyd_levels_max], lengths[lloyd_levels_max], thresholds[lloyd_levels_max];
  double price = 0;
  // A bit's price: what it is worth where levels are fine is 2·ln 2·D, for there D falls by 4 with it; where they are few, more.
  constexpr double worth = 1.55;
  constexpr int rounds = 60;
  for (int round = 0; round < rounds; ++round) {
    double distortion = 0;
    for (unsigned j = 0; j < levels; ++j) {
      const double n = counts[ends[j + 1]] - counts[ends[j]], sum = sums[ends[j + 1]] - sums[ends[j]];
      numbers[j] = sum / n;
      lengths[j] = lloyd_log2(counts[lloyd_bins] / n);
      distortion += squares[ends[j + 1]] - squares[ends[j]] - sum * numbers[j];
    }
    // From half of the rounds on, of the distortion that is reached without.
    if (round == rounds / 2) price = worth * (distortion > 0 ? distortion : 0) / counts[lloyd_bins];
    unsigned next[lloyd_levels_max + 1] = {0}, left = 0;
    for (unsigned j = 0; j < levels; ++j) {
      unsigned end = lloyd_bins;
      if (j + 1 < levels) {
        const double apart = numbers[j + 1] - numbers[j];
        thresholds[j] =
            (numbers[j] + numbers[j + 1]) / 2 + (apart > 0 ? price * (lengths[j + 1] - lengths[j]) / (2 * apart) : 0);
        end = h.bin_of(thresholds[j] > 0 ? thresholds[j] : 0);
      }
      if (end > next[left] && counts[end] > counts[next[left]])
        next[++left] = end;  // else nothing is left of the level
    }
    bool same = left == levels;
    for (unsigned j = 0; same && j <= left; ++j) same = next[j] == ends[j];
    levels = left;
    for (unsigned j = 0; j <= left; ++j) ends[j] = next[j];
    ends[left] = lloyd_bins;
    if (!same) continue;
    if (round >= rounds / 2) break;
    round = rounds / 2 - 1;
  }
  lloyd_levels l;
  l.count = levels;
  l.bounds.count = static_cast<unsigned>(bit_ceil(levels < 2 ? 2 : levels));
  for (uint32_t& b : l.bounds.of) b = ~0u;
  for (unsigned j = 0; j < levels; ++j) {
    const double n = counts[ends[j + 1]] - counts[ends[j]];
    l.numbers[j] = f64_to_bf16(saturate<bf16_type>((sums[ends[j + 1]] - sums[ends[j]]) / n));
    if (j + 1 < levels) l.bounds.of[j] = h.least + (ends[j + 1] << h.shift);
  }
  return l;
}

}  // namespace dr
