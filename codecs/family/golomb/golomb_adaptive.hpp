// Split Golomb blocks whose divisor follows the gaps: one of 16 per 32 indices (layout:
// codecs/index/golomb/SPEC.md). Supports of real gradients have dense rows and empty ones in every block.
#pragma once

#include <cstddef>

#include "codecs/family/golomb/golomb.hpp"

namespace dr {

inline constexpr size_t adaptive_group = 32;

// A little below a power of two, as clustered_divisor: tiny remainders then have no extra bit.
constexpr uint64_t adaptive_divisor(unsigned level) {  // < 16
  const uint64_t power = uint64_t{1} << level;
  return level < 2 ? power : power - (power < 16 ? 1 : power / 16);
}
struct adaptive_codes {
  golomb_code of[16]{};
  constexpr adaptive_codes() {
    for (unsigned level = 0; level < 16; ++level) of[level] = golomb_code::of(adaptive_divisor(level));
  }
};
inline constexpr adaptive_codes golomb_levels;

// Where the search for a group's level begins: no better one is above the mean's power of two by much, and long tails
// raise the mean, so the search goes down from there.
constexpr unsigned first_level(uint64_t sum_of_gaps, uint64_t n) {
  const unsigned level = bit_width(sum_of_gaps / n);
  return level < 15 ? level : 15;
}

// Bits of n <= 32 gaps at a level.
inline uint64_t golomb_group_bits(const uint32_t* gaps, size_t n, const golomb_code& code) {
  uint64_t bits = n * (code.low_bits + 1);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t q = code.quotient(gaps[i]);
    bits += q + (code.divisor > 1 && gaps[i] - q * code.divisor >= code.short_low);
  }
  return bits;
}

// The encoder's choice of `level`, the code of a divisor: from first_level downward while the bits do not grow.
struct golomb_choice {
  unsigned level;
  uint64_t bits;
};
template <class Bits>
golomb_choice choose_level(unsigned first, Bits&& bits_at) {
  golomb_choice best{first, bits_at(first)};
  while (best.level > 0) {
    const uint64_t bits = bits_at(best.level - 1);
    if (bits > best.bits) break;
    best = {best.level - 1, bits};
  }
  return best;
}

// Chooses the level of a group. Returns its bits.
inline uint64_t golomb_choose_level(const uint32_t* gaps, size_t n, uint8_t& level) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += gaps[i];
  const golomb_choice choice =
      choose_level(first_level(sum, n), [&](unsigned at) { return golomb_group_bits(gaps, n, golomb_levels.of[at]); });
  level = static_cast<uint8_t>(choice.level);
  return choice.bits;
}

// For a block of gaps. Returns the bound of the body's bytes, with padding for its four strings.
inline uint64_t golomb_choose_levels(const uint32_t* gaps, size_t n, uint8_t* levels) {
  uint64_t bits = 0;
  for (size_t i = 0; i < n; i += adaptive_group)
    bits +=
        4 + golomb_choose_level(gaps + i, n - i < adaptive_group ? n - i : adaptive_group, levels[i / adaptive_group]);
  return ceil_div(bits, 8) + 3;
}

// Writes the body; returns its end.
inline uint8_t* golomb_put_adaptive(const uint32_t* gaps, size_t n, const uint8_t* levels, uint8_t* out) {
  const auto for_gaps = [&](auto&& f) {
    for (size_t i = 0; i < n; ++i) {
      const golomb_code& code = golomb_levels.of[levels[i / adaptive_group]];
      const uint64_t q = code.quotient(gaps[i]);
      f(code, q, gaps[i] - q * code.divisor);
    }
  };
  bit_writer bits(out);
  for (size_t i = 0; i < n; i += adaptive_group) bits.put(levels[i / adaptive_group], 4);
  bits = bit_writer(out = bits.finish());
  for_gaps([&](const golomb_code& code, uint64_t, uint64_t r) {
    bits.put(r < code.short_low || code.divisor == 1 ? r : (r + code.short_low) >> 1, code.low_bits);
  });
  bits = bit_writer(out = bits.finish());
  for_gaps([&](const golomb_code&, uint64_t q, uint64_t) { bits.put_unary(q); });
  bits = bit_writer(out = bits.finish());
  for_gaps([&](const golomb_code& code, uint64_t, uint64_t r) {
    if (code.divisor > 1 && r >= code.short_low) bits.put((r + code.short_low) & 1, 1);
  });
  return bits.finish();
}

// The levels of a block's groups, two a byte: a copy, so that the validated bytes are the decoded ones, even if the
// frame changes meanwhile.
struct golomb_group_levels {
  uint8_t of[(size_t{1} << golomb_block_log2_max) / adaptive_group / 2];

  // False if they are not all there, or their padding is not zero.
  bool read(const uint8_t* body, size_t size, size_t groups) {
    const size_t table = ceil_div(groups, 2);
    if (table > size) return false;
    std::memcpy(of, body, table);
    return padding_is_zero(of, 4 * groups);
  }
  unsigned operator[](size_t group) const { return of[group / 2] >> 4 * (group % 2) & 15u; }
};

// As golomb_decode_block.
inline bool golomb_get_adaptive(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, uint32_t* x) {
  const size_t groups = ceil_div(n, adaptive_group), table = ceil_div(groups, 2);
  golomb_group_levels levels;
  if (!levels.read(body, size, groups)) return false;
  const auto code_of = [&](size_t i) -> const golomb_code& { return golomb_levels.of[levels[i / adaptive_group]]; };
  uint64_t low_total = 0;
  for (size_t i = 0; i < n; i += adaptive_group)
    low_total += code_of(i).low_bits * (n - i < adaptive_group ? n - i : adaptive_group);
  const uint8_t* const lows = body + table;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size - table || !padding_is_zero(lows, low_total)) return false;

  const uint8_t* const unary = lows + low_size;
  const size_t unary_max = size - table - low_size;
  uint64_t unary_bits = 0;
  size_t found = 0;
  for (size_t at = 0; found < n; at += 8) {
    if (at >= unary_max) return false;
    const size_t rest = unary_max - at;
    uint64_t word = load_bytes(unary + at, rest < 8 ? static_cast<unsigned>(rest) : 8);
    for (; word && found < n; word &= word - 1) {
      unary_bits = 8 * at + countr_zero(word) + 1;
      x[found++] = static_cast<uint32_t>(unary_bits);
    }
  }
  if (!padding_is_zero(unary, unary_bits)) return false;

  const uint8_t* const extra = unary + ceil_div(unary_bits, 8);
  const size_t extra_max = unary_max - static_cast<size_t>(ceil_div(unary_bits, 8));
  bit_reader low(lows, low_total), extras(extra, 8 * uint64_t{extra_max});
  uint64_t extra_bits = 0, next = base, before = 0;
  for (size_t i = 0; i < n; ++i) {
    const golomb_code& code = code_of(i);
    uint64_t r = 0;
    if (code.divisor > 1) {
      r = low.get(code.low_bits);
      if (r >= code.short_low) {
        r = 2 * r + extras.get(1) - code.short_low;
        ++extra_bits;
      }
    }
    next += code.divisor * (x[i] - before - 1) + r + 1;
    before = x[i];
    x[i] = static_cast<uint32_t>(next - 1);  // strictly ascending in 64 bits: the last bounds them all
  }
  return extra_max == ceil_div(extra_bits, 8) && padding_is_zero(extra, extra_bits) && next == end;
}

// Chooses how a block is coded and writes its body. `flagged`: clustered, or by a rule that may adapt, adaptive.
// Returns its end. Cannot fail.
inline uint8_t* golomb_put_block(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out,
                                 bool& flagged) {
  const uint64_t span = uint64_t{x[n - 1]} + 1 - base;
  golomb_code code = rule.code(span, n, false);
  flagged = false;
  if (rule.adaptive) {
    uint32_t gaps[size_t{1} << golomb_block_log2_max];
    uint8_t levels[(size_t{1} << golomb_block_log2_max) / adaptive_group];
    for (size_t i = 0; i < n; ++i) gaps[i] = x[i] - (i ? x[i - 1] + 1 : static_cast<uint32_t>(base));
    flagged = golomb_choose_levels(gaps, n, levels) < golomb_block_size(x, n, base, code);
    if (flagged) return golomb_put_adaptive(gaps, n, levels, out);
  } else if (rule.may_cluster && code.divisor > 1) {
    const golomb_code other = rule.code(span, n, true);
    flagged = golomb_block_size(x, n, base, other) < golomb_block_size(x, n, base, code);
    if (flagged) code = other;
  }
  return golomb_encode_block(x, n, base, code, out);
}

// The decoder of that, as golomb_decode_block.
inline bool golomb_get_block(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                             bool flagged, uint32_t* x) {
  if (flagged && rule.adaptive) return golomb_get_adaptive(body, size, n, base, end, x);
  return golomb_decode_block(body, size, n, base, end, rule.code(end - base, n, flagged), x);
}

}  // namespace dr
