// INCEPTIONN's four classes of values (Li et al. 2018), within a bound of the error (layout: SPEC.md).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// Two bits a value.
enum inceptionn_class : uint32_t { inceptionn_dropped, inceptionn_short, inceptionn_long, inceptionn_raw };

inline constexpr uint32_t inceptionn_fraction_most = 126;
// In the place of a fraction: codes are the first bits of a magnitude below 1, as in the paper.
inline constexpr uint32_t inceptionn_by_exponent = 127;

// The exponent of the largest power of two that is at most the error.
inline int inceptionn_exponent(double error) {
  int exponent = 0;  // error is in [2^(exponent - 1), 2^exponent)
  std::frexp(error, &exponent);
  return exponent - 1;
}
// The least fraction, in bits, whose unit 2^-fraction is at most twice the error: it rounds to within that.
inline uint32_t inceptionn_fraction(double error) {
  return static_cast<uint32_t>(
      std::clamp(-inceptionn_exponent(error) - 1, 0, static_cast<int>(inceptionn_fraction_most)));
}

// 2^e, of a normal number.
constexpr float inceptionn_power(int e) { return std::bit_cast<float>(static_cast<uint32_t>(127 + e) << 23); }

// What the numbers of short and of long codes are multiplied by.
struct inceptionn_units {
  float shorts, longs;

  explicit inceptionn_units(uint32_t fraction)
      : shorts(inceptionn_power(fraction == inceptionn_by_exponent ? -7 : -static_cast<int>(fraction))),
        longs(fraction == inceptionn_by_exponent ? inceptionn_power(-15) : shorts) {}
};

// Magnitudes from which a class is another, as bits of f32. Raw values of two bytes are as short as long codes, and exact.
struct inceptionn_rule {
  uint32_t from_short, from_long, from_raw;
  float scale;  // units of a code in 1

  // Numbers are rounded to units of 2^-fraction.
  inceptionn_rule(uint32_t fraction, uint32_t value_bytes) : scale(inceptionn_power(static_cast<int>(fraction))) {
    const auto bits_of = [unit = std::ldexp(1.0, -static_cast<int>(fraction))](double units) {
      return std::bit_cast<uint32_t>(static_cast<float>(units * unit));
    };
    // To nearest, ties to even: 0.5 is 0, 127.5 is 128, 32767.5 is 32768.
    from_short = bits_of(0.5) + 1;
    from_raw = std::min(bits_of(value_bytes == 2 ? 127.5 : 32767.5), std::bit_cast<uint32_t>(1.0f));
    from_long = std::min(bits_of(127.5), from_raw);
  }
  // The paper's: numbers lose what is below the last bit. Short codes are for the lower half of the exponents from that of
  // the error to that of 1.
  static inceptionn_rule by_exponent(double error, uint32_t value_bytes) {
    inceptionn_rule rule(0, value_bytes);
    const int e = inceptionn_exponent(error);
    const auto from = [](int exponent) { return std::bit_cast<uint32_t>(std::ldexp(1.0f, exponent)); };
    rule.from_short = from(e);
    rule.from_long = from(e / 2);
    rule.from_raw = value_bytes == 2 ? rule.from_long : from(0);
    return rule;
  }
};

struct inceptionn_counts {
  uint64_t shorts = 0, longs = 0, raws = 0;

  uint64_t size(uint64_t value_bytes) const { return shorts + 2 * longs + value_bytes * raws; }
};
constexpr uint64_t inceptionn_tags_size(uint64_t n) { return ceil_div(n, 4); }

// ---- Encode ----------------------------------------------------------------------------------------------

template <class T>
inceptionn_counts inceptionn_count_scalar(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule) {
  inceptionn_counts from;  // from there on
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t m = std::bit_cast<uint32_t>(T::to_f32(values[i])) & 0x7fffffff;
    from.shorts += m >= rule.from_short;
    from.longs += m >= rule.from_long;
    from.raws += m >= rule.from_raw;
  }
  return {from.shorts - from.longs, from.longs - from.raws, from.raws};
}

// Streams of a few values apart, with room for writes of twins past their ends.
inline constexpr uint64_t inceptionn_block = 1024, inceptionn_slack = 32;
template <class T>
struct inceptionn_streams {
  uint8_t tags[inceptionn_block / 4 + inceptionn_slack];
  uint8_t shorts[inceptionn_block + inceptionn_slack];
  uint16_t longs[inceptionn_block + inceptionn_slack];
  typename T::bits raws[inceptionn_block + inceptionn_slack];
};

// The number of a code. (Of a value of another class it means nothing.)
inline uint32_t inceptionn_rounded(uint32_t m, float scale) {
  // The last bits of a number of 2^23 units are units, rounded to nearest.
  return std::bit_cast<uint32_t>(std::bit_cast<float>(m) * scale + 0x1p23f) & 0x7fff;
}
inline uint32_t inceptionn_cut(uint32_t m, float scale) {
  return static_cast<uint32_t>(std::min(std::bit_cast<float>(m) * scale, 32767.0f));
}

// Appends values [first, n) of a block to its streams; first is a multiple of 4.
template <class T, bool by_exponent = false>
void inceptionn_split_scalar(const typename T::bits* values, uint64_t first, uint64_t n, const inceptionn_rule& rule,
                             inceptionn_streams<T>& to, inceptionn_counts& counts) {
  // Copies, which the bytes that are written cannot be.
  const inceptionn_rule by = rule;
  inceptionn_counts at = counts;
  for (uint64_t i = first; i < n; i += 4) {
    uint32_t tags = 0;
    for (uint64_t k = i; k < std::min(i + 4, n); ++k) {
      const uint32_t bits = std::bit_cast<uint32_t>(T::to_f32(values[k])), m = bits & 0x7fffffff, sign = bits >> 31;
      const bool s = m >= by.from_short, l = m >= by.from_long, r = m >= by.from_raw;
      const uint32_t q = by_exponent ? inceptionn_cut(m, 0x1p15f) : inceptionn_rounded(m, by.scale);
      to.shorts[at.shorts] = static_cast<uint8_t>((by_exponent ? q >> 8 : q) | sign << 7);
      to.longs[at.longs] = static_cast<uint16_t>(q | sign << 15);
      to.raws[at.raws] = values[k];
      at.shorts += s != l;
      at.longs += l != r;
      at.raws += r;
      tags |= (r ? uint32_t{inceptionn_raw} : uint32_t{s} + l) << 2 * (k - i);
    }
    to.tags[i / 4] = static_cast<uint8_t>(tags);
  }
  counts = at;
}

// Writes the tags, then the streams, which begin where the counts of all say. Returns the bytes.
//   count(values, n, rule)
//   split(values, n, rule, streams, counts)   of a block
template <class T, auto count, auto split>
uint64_t inceptionn_encode_with(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule, uint8_t* out) {
  using bits = typename T::bits;
  const inceptionn_counts all = count(values, n, rule);
  uint8_t *tags = out, *shorts = tags + inceptionn_tags_size(n), *longs = shorts + all.shorts,
          *raws = longs + 2 * all.longs;
  inceptionn_streams<T> streams;
  for (uint64_t begin = 0; begin < n; begin += inceptionn_block) {
    const uint64_t length = std::min(n - begin, inceptionn_block);
    inceptionn_counts counts;
    split(values + begin, length, rule, streams, counts);
    std::memcpy(tags, streams.tags, inceptionn_tags_size(length));
    std::memcpy(shorts, streams.shorts, counts.shorts);
    std::memcpy(longs, streams.longs, 2 * counts.longs);
    std::memcpy(raws, streams.raws, sizeof(bits) * counts.raws);
    tags += inceptionn_tags_size(length);
    shorts += counts.shorts;
    longs += 2 * counts.longs;
    raws += sizeof(bits) * counts.raws;
  }
  return static_cast<uint64_t>(raws - out);
}

// ---- Decode ----------------------------------------------------------------------------------------------

// For n tags; unused bits of the last byte must be zero.
DR_EVERYWHERE inceptionn_counts inceptionn_count_tags(const uint8_t* tags, uint64_t n) {
  inceptionn_counts counts;
  const uint64_t size = inceptionn_tags_size(n);
  const auto add = [&](uint64_t word) {
    const uint64_t low = word & 0x5555555555555555, high = word >> 1 & 0x5555555555555555;
    counts.shorts += popcount(low & ~high);
    counts.longs += popcount(high & ~low);
    counts.raws += popcount(low & high);
  };
  uint64_t i = 0;
  for (; i + 8 <= size; i += 8) add(load<uint64_t>(tags + i));
  for (; i < size; ++i) add(tags[i]);
  return counts;
}

// Values [first, n) of a block, whose streams go on at `counts`.
template <class T>
void inceptionn_join_scalar(const inceptionn_streams<T>& from, uint64_t first, uint64_t n, const inceptionn_units& unit,
                            inceptionn_counts counts, typename T::bits* out) {
  for (uint64_t i = first; i < n; ++i) {
    const uint32_t tag = from.tags[i / 4] >> 2 * (i % 4) & 3;
    const uint32_t s = from.shorts[counts.shorts], l = from.longs[counts.longs];
    const auto raw = from.raws[counts.raws];
    const bool is_short = tag == inceptionn_short;
    const uint32_t q = is_short ? s & 0x7f : l & 0x7fff, sign = is_short ? s >> 7 : l >> 15;
    const float size = static_cast<float>(q) * (is_short ? unit.shorts : unit.longs);
    const uint32_t number = std::bit_cast<uint32_t>(size) | sign << 31;
    const auto rounded = rounded_finite<T>(std::bit_cast<float>(number));
    out[i] = tag == inceptionn_raw ? raw : tag == inceptionn_dropped ? typename T::bits{0} : rounded;
    counts.shorts += is_short;
    counts.longs += tag == inceptionn_long;
    counts.raws += tag == inceptionn_raw;
  }
}

// The first fault of a payload, if it has one.
struct inceptionn_verdict {
  const char* what = nullptr;
  uint64_t where = 0, found = 0;
};

// Every block is judged and used as it was copied.
//   join(streams, n, unit, out)   of a block
template <class T, auto join>
DR_EVERYWHERE inceptionn_verdict inceptionn_decode_with(const uint8_t* in, uint64_t size, uint64_t n,
                                                        const inceptionn_units& unit, typename T::bits* out) {
  using bits = typename T::bits;
  const uint64_t tags_size = inceptionn_tags_size(n);
  if (size < tags_size) return {"inceptionn: payload is shorter than its tags", size, tags_size};
  const inceptionn_counts all = inceptionn_count_tags(in, n);
  if (size - tags_size != all.size(sizeof(bits)))
    return {"inceptionn: payload is not as long as its tags say", size, tags_size + all.size(sizeof(bits))};
  if (n % 4 && in[tags_size - 1] >> 2 * (n % 4))
    return {"inceptionn: padding is not zero", tags_size - 1, in[tags_size - 1]};
  const uint8_t *shorts = in + tags_size, *longs = shorts + all.shorts, *raws = longs + 2 * all.longs;
  inceptionn_counts left = all;
  inceptionn_streams<T> streams{};
  for (uint64_t begin = 0; begin < n; begin += inceptionn_block) {
    const uint64_t length = std::min(n - begin, inceptionn_block);
    std::memcpy(streams.tags, in + begin / 4, inceptionn_tags_size(length));
    const inceptionn_counts counts = inceptionn_count_tags(streams.tags, length);
    if (counts.shorts > left.shorts || counts.longs > left.longs || counts.raws > left.raws)
      return {"inceptionn: tags change while they are read", begin / 4, streams.tags[0]};
    std::memcpy(streams.shorts, shorts, counts.shorts);
    std::memcpy(streams.longs, longs, 2 * counts.longs);
    std::memcpy(streams.raws, raws, sizeof(bits) * counts.raws);
    for (uint64_t k = 0; k < counts.raws; ++k)
      if (!is_finite<T>(streams.raws[k]))
        return {"inceptionn: a number is not finite", static_cast<uint64_t>(raws - in) + sizeof(bits) * k,
                streams.raws[k]};
    join(streams, length, unit, out + begin);
    shorts += counts.shorts;
    longs += 2 * counts.longs;
    raws += sizeof(bits) * counts.raws;
    left = {left.shorts - counts.shorts, left.longs - counts.longs, left.raws - counts.raws};
  }
  return {};
}

template <class T, bool by_exponent>
void inceptionn_split_all(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule,
                          inceptionn_streams<T>& to, inceptionn_counts& counts) {
  inceptionn_split_scalar<T, by_exponent>(values, 0, n, rule, to, counts);
}
template <class T>
void inceptionn_join_all(const inceptionn_streams<T>& from, uint64_t n, const inceptionn_units& unit,
                         typename T::bits* out) {
  inceptionn_join_scalar<T>(from, 0, n, unit, {}, out);
}
template <class T>
uint64_t inceptionn_encode_scalar(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule,
                                  uint8_t* out) {
  return inceptionn_encode_with<T, inceptionn_count_scalar<T>, inceptionn_split_all<T, false>>(values, n, rule, out);
}
template <class T>
uint64_t inceptionn_encode_by_exponent(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule,
                                       uint8_t* out) {
  return inceptionn_encode_with<T, inceptionn_count_scalar<T>, inceptionn_split_all<T, true>>(values, n, rule, out);
}
template <class T>
inceptionn_verdict inceptionn_decode_scalar(const uint8_t* in, uint64_t size, uint64_t n, const inceptionn_units& unit,
                                            typename T::bits* out) {
  return inceptionn_decode_with<T, inceptionn_join_all<T>>(in, size, n, unit, out);
}

template <class T>
uint64_t inceptionn_encode_avx2(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule, uint8_t* out);
template <class T>
inceptionn_verdict inceptionn_decode_avx512(const uint8_t* in, uint64_t size, uint64_t n, const inceptionn_units& unit,
                                            typename T::bits* out);

template <class T>
inline constexpr cpu_table<decltype(&inceptionn_encode_scalar<T>)> inceptionn_encode{inceptionn_encode_scalar<T>,
                                                                                     on_x86(inceptionn_encode_avx2<T>)};
template <class T>
inline constexpr cpu_table<decltype(&inceptionn_decode_scalar<T>)> inceptionn_decode{
    inceptionn_decode_scalar<T>, nullptr, on_x86(inceptionn_decode_avx512<T>)};

}  // namespace dr
