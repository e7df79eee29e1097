// Split Golomb: gaps of ascending numbers as three bit strings (Golomb 1966; layout: codecs/index/golomb/SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"

namespace dr {

// The divisor of a block, and the numbers that follow from it. Integers only, so that encoder and decoder agree.
struct golomb_code {
  uint64_t divisor;    // M
  unsigned low_bits;   // k: bits of v
  uint64_t short_low;  // s: remainders below it have no extra bit
  uint64_t inverse;    // 2^64 / M rounded up; 0 for M = 1

  DR_HD static constexpr golomb_code of(uint64_t divisor) {
    const unsigned c = ceil_log2(divisor);
    return {divisor, c ? c - 1 : 0, (uint64_t{1} << c) - divisor, divisor == 1 ? 0 : ~uint64_t{0} / divisor + 1};
  }
  // gap / M, exact for gaps and divisors below 2^32 (Lemire, Kaser, Kurz 2019): a multiplication instead of a division.
  DR_HD constexpr uint64_t quotient(uint64_t gap) const {
    __extension__ using wide = unsigned __int128;
    return inverse ? static_cast<uint64_t>(wide{inverse} * gap >> 64) : gap;
  }
};

// span < 2^32, n <= 2^13: no product overflows, and dividend and divisor have 32 bits.
DR_HD constexpr uint64_t golomb_divisor(uint64_t span, uint64_t n) {
  const uint64_t q16 = (2 * span - n) * 22713 + n * 32768;  // 22713 / 65536 = ln 2 / 2
  const uint32_t m = static_cast<uint32_t>(q16 >> 16) / static_cast<uint32_t>(n);
  return m ? m : 1;
}
// The power of two nearest to golomb_divisor on a logarithmic scale. M < 2^32 · ln 2, so 2·M² fits.
DR_HD constexpr uint64_t rice_divisor(uint64_t span, uint64_t n) {
  const uint64_t m = golomb_divisor(span, n);
  return uint64_t{1} << ((bit_width(2 * m * m) - 1) / 2);
}

// The alternative where many gaps are tiny and few are long: a little below the power of two, so that tiny
// remainders have no extra bit. 1: no smaller divisor.
DR_HD constexpr uint64_t clustered_divisor(uint64_t divisor) {
  const uint64_t power = bit_floor(divisor), less = power >> 4;
  return power > 1 ? power - (less ? less : 1) : 1;
}

// In a table entry, beside the size of a body: at most 2^13 · (19 + 3) / 8 + 3 bytes, for 2^13 indices below 2^32 have
// M < 2^19.
inline constexpr uint16_t golomb_flag = 0x8000;

// How an index codec chooses a block's divisor.
struct divisor_rule {
  uint64_t (*plain)(uint64_t span, uint64_t n);
  bool may_cluster;       // may flag a block as clustered
  bool adaptive = false;  // a flag means one divisor per 32 indices (golomb_adaptive.hpp)

  DR_HD constexpr golomb_code code(uint64_t span, uint64_t n, bool clustered) const {
    const uint64_t divisor = plain(span, n);
    return golomb_code::of(clustered ? clustered_divisor(divisor) : divisor);
  }
};
inline constexpr divisor_rule golomb_rule{golomb_divisor, true}, adaptive_rule{golomb_divisor, false, true},
    rice_rule{rice_divisor, false};

inline constexpr unsigned golomb_block_log2_min = 9, golomb_block_log2_max = 13, golomb_block_log2 = 12;

// Bits of a body, without the padding of its three strings, at most n·(log2(span/n) + 2.92). Proof: an index costs
// k + 1 (extra) + 1 + q bits, k + 1 = c. Over a block Σ q <= (span − n)/M, so n·(c + 1) + (span − n)/M is a bound. With
// a = span/n and M = ⌊0.69315·a + 0.1534⌋ >= 1, c + 1 + (a − 1)/M − log2(a) is largest just above M = 2^j + 1 for j →
// ∞: 0.4712 + 1 + 1.4427 = 2.914 (computed for all M up to 2^16; for M = 1 it is 1.3). Rice: the same with M' within a
// factor √2 of M, where c' <= log2(M) + 1/2 and the unary part is at most √2 times as long: 2.1. log2 is concave, so
// the sum over blocks is at most r·(log2(universe/r) + 2.92), and that grows with r, so it holds for fewer indices too.
// A clustered divisor is taken only where it makes the body shorter.
// Where gaps are short that is loose by up to a bit. c + 1 + (a − 1)/M over a has an upper hull, whose sides p + q·a
// are bounds, too, and on average over blocks: those between the first a of M = 2, 3 and 5, and between the last of M =
// 5 and the first of 9, 9 and 17, 17 and 33; the first of all from the origin instead of M = 1, so that no p is below
// 0. Then r·p + universe·q grows with r. The unit test walks all M.
struct golomb_hull_side {
  uint32_t p, q;  // · 65536, rounded up
};
inline constexpr golomb_hull_side golomb_hull[] = {{0, 69671},      {39949, 54673}, {156010, 26412},
                                                   {254861, 12417}, {340545, 5864}, {414547, 2877}};

constexpr uint64_t golomb_bound(uint64_t universe, uint64_t count_max, unsigned block_log2) {
  if (count_max == 0) return 0;
  const uint64_t blocks = ceil_div(count_max, uint64_t{1} << block_log2);
  const uint64_t q16 = log2_q16_above(universe, count_max) + 191366;  // 2.92 · 65536
  uint64_t bits = count_max / 65536 * q16 + (count_max % 65536 * q16 >> 16) + 1;
  for (const golomb_hull_side& side : golomb_hull) {
    const uint64_t below = ((count_max * side.p + universe * side.q) >> 16) + 1;
    bits = below < bits ? below : bits;
  }
  return bits / 8 + 1 + blocks * (6 + 3);  // table entry (a lone block's has at most 5 bytes), three paddings
}

// Calls visit(q, r) for the gaps of a block: n >= 1 ascending indices from base.
template <class F>
void golomb_gaps(const uint32_t* x, size_t n, uint64_t base, const golomb_code& code, F&& visit) {
  uint64_t previous = base;  // first gap: x_0 - base
  for (size_t i = 0; i < n; ++i) {
    const uint64_t gap = x[i] - previous;
    const uint64_t q = code.quotient(gap);
    visit(q, gap - q * code.divisor);
    previous = uint64_t{x[i]} + 1;
  }
}

// Bytes of a block's body, without writing it.
inline uint64_t golomb_block_size(const uint32_t* x, size_t n, uint64_t base, golomb_code code) {
  uint64_t unary = n, extra = 0;
  golomb_gaps(x, n, base, code, [&](uint64_t q, uint64_t r) {
    unary += q;
    extra += r >= code.short_low;
  });
  if (code.divisor == 1) extra = 0;
  return ceil_div(n * code.low_bits, 8) + ceil_div(unary, 8) + ceil_div(extra, 8);
}

// Writes the body of one block: n >= 1 ascending indices in [base, base + span). Returns its end. Cannot fail.
inline uint8_t* golomb_encode_block(const uint32_t* x, size_t n, uint64_t base, golomb_code code, uint8_t* out) {
  const auto gaps = [&](auto&& visit) { golomb_gaps(x, n, base, code, visit); };
  if (code.divisor > 1) {
    bit_writer low(out);
    gaps([&](uint64_t, uint64_t r) { low.put(r < code.short_low ? r : (r + code.short_low) >> 1, code.low_bits); });
    out = low.finish();
  }
  bit_writer unary(out);
  gaps([&](uint64_t q, uint64_t) { unary.put_unary(q); });
  out = unary.finish();
  if (code.divisor > 1) {
    bit_writer extra(out);
    gaps([&](uint64_t, uint64_t r) {
      if (r >= code.short_low) extra.put((r + code.short_low) & 1, 1);
    });
    out = extra.finish();
  }
  return out;
}

// Reads n >= 1 indices of a block that ends at `end`; `size` bytes of body, all of which must be used. False if the
// body is corrupt; x then holds anything. Looks at no byte outside the body, in time O(n + size).
inline bool golomb_decode_block(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end,
                                golomb_code code, uint32_t* x) {
  const bool has_low = code.divisor > 1;
  const uint64_t low_total = has_low ? uint64_t{code.low_bits} * n : 0;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size || !padding_is_zero(body, low_total)) return false;

  // Select: the i-th one of the unary string, less i, is the sum of the quotients so far.
  const uint8_t* unary = body + low_size;
  const size_t unary_max = size - low_size;
  uint64_t unary_bits = 0;
  size_t found = 0;
  for (size_t at = 0; found < n; at += 8) {
    if (at >= unary_max) return false;
    const size_t rest = unary_max - at;
    uint64_t word = load_bytes(unary + at, rest < 8 ? static_cast<unsigned>(rest) : 8);
    for (; word && found < n; word &= word - 1) {
      unary_bits = 8 * at + static_cast<unsigned>(std::countr_zero(word)) + 1;  // (on the host only)
      x[found] = static_cast<uint32_t>(unary_bits - 1 - found);
      ++found;
    }
  }
  if (!padding_is_zero(unary, unary_bits)) return false;

  const size_t unary_size = static_cast<size_t>(ceil_div(unary_bits, 8));
  const uint8_t* extra = unary + unary_size;
  const size_t extra_max = unary_max - unary_size;
  bit_reader low(body, low_total), extras(extra, 8 * uint64_t{extra_max});
  uint64_t extra_bits = 0, remainders = 0, last = 0;
  for (size_t i = 0; i < n; ++i) {
    if (has_low) {
      uint64_t r = low.get(code.low_bits);
      if (r >= code.short_low) {
        r = 2 * r + extras.get(1) - code.short_low;
        ++extra_bits;
      }
      remainders += r;
    }
    last = base + code.divisor * x[i] + remainders + i;
    x[i] = static_cast<uint32_t>(last);  // strictly ascending in 64 bits, so `last` below bounds them all
  }
  if (extra_max != ceil_div(extra_bits, 8) || !padding_is_zero(extra, extra_bits)) return false;
  return last + 1 == end;
}

}  // namespace dr
