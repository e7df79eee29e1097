// Classes of weights by their magnitude, which the sender and the receiver of a patch both know. Layout: README.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/word.hpp"

namespace dr {

inline constexpr unsigned classes_max = 8;

// The byte of a word's magnitude that classes go by: the exponent of f32 and bf16, exponent and three bits of the
// mantissa of f16, the seven bits of 8, of f64 the exponent of the nearest f32.
DR_HD constexpr uint8_t word_key(uint8_t b) { return static_cast<uint8_t>(b << 1); }
DR_HD constexpr uint8_t word_key(uint16_t b) { return static_cast<uint8_t>(b >> 7); }
DR_HD constexpr uint8_t word_key(uint32_t b) { return static_cast<uint8_t>(b >> 23); }
DR_HD constexpr uint8_t word_key(uint64_t b) {
  const uint32_t exponent = static_cast<uint32_t>(b >> 52) & 0x7ff;
  return static_cast<uint8_t>(exponent <= 896 ? 0 : exponent - 896 > 255 ? 255 : exponent - 896);
}

// log2(x) · 2^16 of x >= 1, rounded down: the fraction bit by bit, so the same everywhere.
DR_HD constexpr uint32_t log2_q16(uint64_t x) {
  const unsigned e = bit_width(x) - 1;
  uint64_t m = e >= 31 ? x >> (e - 31) : x << (31 - e);  // [2^31, 2^32)
  uint32_t bits = e << 16;
  for (unsigned k = 16; k-- > 0;) {
    m = m * m >> 31;
    if (m >> 32) {
      bits |= 1u << k;
      m >>= 1;
    }
  }
  return bits;
}

// x · log2(x) · 2^16.
DR_HD constexpr uint64_t x_log2_q16(uint64_t x) { return x ? x * log2_q16(x) : 0; }

// Ascending thresholds: a word is of the class whose number is that of thresholds not above its key.
struct class_list {
  uint32_t count = 1;
  std::array<uint8_t, classes_max> threshold{};  // [count - 1]

  uint32_t of(uint8_t key) const {
    uint32_t c = 0;
    for (uint32_t k = 0; k + 1 < count; ++k) c += key >= threshold[k];
    return c;
  }
  std::array<uint8_t, 256> table() const {
    std::array<uint8_t, 256> of_key;
    for (unsigned key = 0; key < 256; ++key) of_key[key] = static_cast<uint8_t>(of(static_cast<uint8_t>(key)));
    return of_key;
  }

  uint8_t* put(uint8_t* out) const {
    *out++ = static_cast<uint8_t>(count);
    for (uint32_t k = 0; k + 1 < count; ++k) *out++ = threshold[k];
    return out;
  }
  // Returns the end, or nullptr for an invalid list.
  const uint8_t* get(const uint8_t* in, const uint8_t* end) {
    if (in == end || *in < 1 || *in > classes_max || end - in < *in) return nullptr;
    count = *in++;
    for (uint32_t k = 0; k + 1 < count; ++k)
      if ((threshold[k] = in[k]) == 0 || (k && threshold[k] <= threshold[k - 1])) return nullptr;
    return in + count - 1;
  }
};

// The thresholds that cost least: cost(i, j) is that of keys in groups [i, j) together, of `groups` groups, of which
// group g begins at key begin[g] (begin[0] = 0). A class costs `class_cost` more. By dynamic programming; on a tie fewer
// classes, and the lower threshold.
template <class Cost>
class_list choose_classes(uint32_t groups, const uint8_t* begin, uint64_t class_cost, Cost&& cost) {
  constexpr uint32_t max_groups = 64;
  static_assert(classes_max <= 8);
  uint64_t best[classes_max + 1][max_groups + 1];
  uint8_t from[classes_max + 1][max_groups + 1] = {};
  for (auto& row : best) std::fill_n(row, max_groups + 1, UINT64_MAX);
  best[0][0] = 0;
  for (uint32_t j = 1; j <= groups; ++j)
    for (uint32_t i = 0; i < j; ++i) {
      const uint64_t c = cost(i, j) + class_cost;
      for (uint32_t k = 1; k <= classes_max; ++k)
        if (best[k - 1][i] != UINT64_MAX && best[k - 1][i] + c < best[k][j]) {
          best[k][j] = best[k - 1][i] + c;
          from[k][j] = static_cast<uint8_t>(i);
        }
    }
  class_list out;
  for (uint32_t k = 1; k <= classes_max; ++k)
    if (best[k][groups] < best[out.count][groups]) out.count = k;
  uint32_t end = groups;
  for (uint32_t k = out.count; k > 1; --k) {
    end = from[k][end];
    out.threshold[k - 2] = begin[end];
  }
  return out;
}

// Groups of neighbouring keys with about equal weights, at most `max_groups`: begin [max_groups], of [256]. weight [256].
// Returns their number.
DR_HD inline uint32_t group_keys(const uint32_t* weight, uint32_t max_groups, uint8_t* begin, uint8_t* of) {
  uint64_t left = 0, here = 0;
  for (unsigned key = 0; key < 256; ++key) left += weight[key];
  uint32_t more = max_groups, count = 0;
  begin[count++] = 0;
  for (unsigned key = 0; key < 256; ++key) {
    of[key] = static_cast<uint8_t>(count - 1);
    here += weight[key];
    if (key == 255 || !here || count == max_groups || here * more < left) continue;
    left -= here;
    here = 0;
    --more;
    begin[count++] = static_cast<uint8_t>(key + 1);
  }
  return count;
}

// At most 32 groups.
struct key_groups {
  std::array<uint8_t, 32> begin{};
  std::array<uint8_t, 256> of{};
  uint32_t count;  // (the last one: it is set with the others)

  explicit key_groups(const uint32_t* weight, uint32_t max_groups = 32)
      : count(group_keys(weight, max_groups, begin.data(), of.data())) {}
};

}  // namespace dr
