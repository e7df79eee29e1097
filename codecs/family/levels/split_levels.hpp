// Split Golomb of levels (small numbers that need not ascend): the bit strings of golomb.hpp without its prefix sums,
// so level i is q_i · M + r_i. Layout of a body of n levels, strings start on bytes and are zero-padded:
//   v: k bits per level     unary: q_i zeros and a one     extras: a bit per v that needs one
// (Golomb 1966; SPEC.md of the codecs that use it: uniform_quant.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/family/levels/level_code.hpp"
#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// Bits of n levels, from `begin` on, appended to the three strings.
struct level_strings {
  word_writer low, unary, extras;

  void put(const uint16_t* levels, size_t n, level_code code) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t q = levels[i] / code.divisor, r = levels[i] - q * code.divisor;
      unary.put_unary(q);
      if (code.divisor == 1) continue;
      low.put(r < code.short_low ? r : (r + code.short_low) >> 1, code.low_bits);
      if (r >= code.short_low) extras.put((r + code.short_low) & 1, 1);
    }
  }
};
inline constexpr size_t level_string_max = level_body_max + level_slack;

// The unary string and the extras, after v. Returns the end.
inline uint8_t* put_level_strings(uint8_t* out, const uint8_t* unary, const uint8_t* unary_end, const uint8_t* extras,
                                  const uint8_t* extras_end) {
  std::memcpy(out, unary, static_cast<size_t>(unary_end - unary));
  out += unary_end - unary;
  std::memcpy(out, extras, static_cast<size_t>(extras_end - extras));
  return out + (extras_end - extras);
}

//   levels [n], 1 <= n <= level_block      out: level_body_max + level_slack bytes; the bits of all must fit
//   level_body_max
// Returns the end.
inline uint8_t* split_levels_encode_scalar(const uint16_t* levels, size_t n, level_code code, uint8_t* out) {
  uint8_t unary[level_string_max], extras[level_block / 8 + level_slack];
  level_strings s{word_writer(out), word_writer(unary), word_writer(extras)};
  s.put(levels, n, code);
  out = s.low.finish();
  return put_level_strings(out, unary, s.unary.finish(), extras, s.extras.finish());
}

//   body: `size` bytes, all of which must be used, and level_slack zero bytes    levels: room for n +
//   level_slack
// False if the body is corrupt.
inline bool split_levels_decode_scalar(const uint8_t* body, size_t size, size_t n, level_code code, uint16_t* levels) {
  const uint64_t low_total = uint64_t{code.low_bits} * n, low_size = ceil_div(low_total, 8);
  if (low_size > size || !padding_is_zero(body, low_total)) return false;
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;
  uint64_t ended = 0;  // unary bits so far
  size_t found = 0;
  for (size_t at = 0; found < n; at += 8) {
    if (at >= unary_max) return false;
    for (uint64_t word = load<uint64_t>(unary + at); word && found < n; word &= word - 1) {
      const uint64_t position = 8 * at + countr_zero(word), q = position - ended;
      if (q > level_max) return false;
      levels[found++] = static_cast<uint16_t>(q);
      ended = position + 1;
    }
  }
  const size_t unary_size = ceil_div(ended, 8);
  if (unary_size > unary_max || !padding_is_zero(unary, ended)) return false;
  const uint8_t* const extra = unary + unary_size;
  const size_t extra_max = unary_max - unary_size;
  if (code.divisor == 1) return extra_max == 0;
  bit_reader low(body, low_total), extras(extra, 8 * uint64_t{extra_max});
  uint64_t extra_bits = 0;
  for (size_t i = 0; i < n; ++i) {
    uint64_t r = low.get(code.low_bits);
    if (r >= code.short_low) {
      r = 2 * r + extras.get(1) - code.short_low;
      ++extra_bits;
    }
    const uint64_t level = levels[i] * uint64_t{code.divisor} + r;
    if (level > level_max) return false;
    levels[i] = static_cast<uint16_t>(level);
  }
  return extra_max == ceil_div(extra_bits, 8) && padding_is_zero(extra, extra_bits);
}

uint8_t* split_levels_encode_avx512(const uint16_t* levels, size_t n, level_code code, uint8_t* out);
bool split_levels_decode_avx512(const uint8_t* body, size_t size, size_t n, level_code code, uint16_t* levels);
uint8_t* split_levels_encode_avx2(const uint16_t* levels, size_t n, level_code code, uint8_t* out);
bool split_levels_decode_avx2(const uint8_t* body, size_t size, size_t n, level_code code, uint16_t* levels);
inline constexpr cpu_table<decltype(&split_levels_encode_scalar)> split_levels_encode{
    split_levels_encode_scalar, on_x86(split_levels_encode_avx2), on_x86(split_levels_encode_avx512)};
inline constexpr cpu_table<decltype(&split_levels_decode_scalar)> split_levels_decode{
    split_levels_decode_scalar, on_x86(split_levels_decode_avx2), on_x86(split_levels_decode_avx512)};

}  // namespace dr
