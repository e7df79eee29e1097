// Asymmetric numeral systems in ranges (rANS, Duda 2013): symbols of several tables in one string of 16-bit words.
// Layout: README.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"

namespace dr {

inline constexpr unsigned rans_bits = 12;  // of a frequency
inline constexpr uint32_t rans_total = 1u << rans_bits;
inline constexpr uint32_t rans_low = 1u << 16;  // states are in [2^16, 2^32)
inline constexpr unsigned rans_symbols_max = 256;

// States that take turns, symbol i belongs to state i mod lanes: decoders work on all at once.
constexpr unsigned rans_lanes(uint64_t n) { return n < 2048 ? 1 : 16; }
// A symbol writes one word at most.
constexpr uint64_t rans_bound(uint64_t n) { return 2 * n + 4 * uint64_t{rans_lanes(n)}; }

// Frequencies of symbols, with the sum rans_total.
struct rans_table {
  uint32_t symbols = 0;  // those from here on have frequency 0
  std::array<uint16_t, rans_symbols_max> frequency{}, start{};

  // From counts, of which one is not 0: each symbol that occurs has a frequency of at least 1.
  void fit(const uint32_t* counts, uint32_t n) {
    uint64_t all = 0;
    symbols = 0;
    for (uint32_t s = 0; s < n; ++s) {
      all += counts[s];
      if (counts[s]) symbols = s + 1;
    }
    uint32_t sum = 0;
    for (uint32_t s = 0; s < symbols; ++s) {
      const auto share = static_cast<uint32_t>(uint64_t{counts[s]} * rans_total / all);
      frequency[s] = static_cast<uint16_t>(counts[s] && !share ? 1 : share);
      sum += frequency[s];
    }
    // What rounding leaves goes to the largest, which also gives what the ones of rare symbols took.
    while (sum != rans_total) {
      uint32_t largest = 0;
      for (uint32_t s = 1; s < symbols; ++s)
        if (frequency[s] > frequency[largest]) largest = s;
      if (sum < rans_total) {
        frequency[largest] = static_cast<uint16_t>(frequency[largest] + rans_total - sum);
        sum = rans_total;
      } else {
        const uint32_t less = sum - rans_total < frequency[largest] / 2u ? sum - rans_total : frequency[largest] / 2u;
        frequency[largest] = static_cast<uint16_t>(frequency[largest] - less);
        sum -= less;
      }
    }
    set_starts();
  }

  void set_starts() {
    uint32_t at = 0;
    for (uint32_t s = 0; s < symbols; ++s) {
      start[s] = static_cast<uint16_t>(at);
      at += frequency[s];
    }
  }

  // Bytes: symbols − 1, and all frequencies but the last as varints.
  uint8_t* put(uint8_t* out) const {
    *out++ = static_cast<uint8_t>(symbols - 1);
    for (uint32_t s = 0; s + 1 < symbols; ++s) out = put_varint(out, frequency[s]);
    return out;
  }
  static constexpr size_t size_max(uint32_t symbols) { return 2 * size_t{symbols} - 1; }

  // Returns the end, or nullptr: it is no table of at most `most` symbols.
  const uint8_t* get(const uint8_t* in, const uint8_t* end, uint32_t most) {
    if (in == end || uint32_t{*in} + 1 > most) return nullptr;
    symbols = uint32_t{*in++} + 1;
    uint32_t sum = 0;
    for (uint32_t s = 0; s + 1 < symbols; ++s) {
      uint64_t f;
      in = get_varint(in, end, f);
      if (!in || f > rans_total - sum) return nullptr;
      frequency[s] = static_cast<uint16_t>(f);
      sum += static_cast<uint32_t>(f);
    }
    if (sum >= rans_total) return nullptr;  // the last one occurs
    frequency[symbols - 1] = static_cast<uint16_t>(rans_total - sum);
    set_starts();
    return in;
  }
};

// What a decoder looks up by the low bits of a state: symbol · 2^24 + offset in its range · 2^12 + frequency − 1.
struct rans_lookup {
  std::array<uint32_t, rans_total> slot;

  explicit rans_lookup(const rans_table& t) {
    uint32_t at = 0;
    for (uint32_t s = 0; s < t.symbols; ++s)
      for (uint32_t k = 0; k < t.frequency[s]; ++k) slot[at++] = s << 24 | k << 12 | (t.frequency[s] - 1u);
  }
};

// Encodes from the last symbol to the first, downwards from the end of `room`, which has rans_bound(n) bytes: then a
// decoder reads states and words forwards. tables[of[i]] has symbol i; of nullptr: tables[0] has all. Returns where
// the string begins; it ends where the room does.
inline uint8_t* rans_put(const rans_table* tables, const uint8_t* symbols, const uint8_t* of, uint64_t n,
                         uint8_t* room) {
  const unsigned lanes = rans_lanes(n);
  uint32_t state[16];
  for (uint32_t& x : state) x = rans_low;
  uint8_t* at = room + rans_bound(n);
  for (uint64_t i = n; i-- > 0;) {
    const rans_table& t = tables[of ? of[i] : 0];
    const uint32_t f = t.frequency[symbols[i]];
    uint32_t& x = state[i & (lanes - 1)];
    if (x >> 20 >= f) {  // x >= f · 2^20
      at -= 2;
      store(at, static_cast<uint16_t>(x));
      x >>= 16;
    }
    x = (x / f << rans_bits) + x % f + t.start[symbols[i]];
  }
  for (unsigned k = lanes; k-- > 0;) {
    at -= 4;
    store(at, state[k]);
  }
  return at;
}

// Decodes [in, end), which must be all of the string. Returns false if it is not one.
inline bool rans_get(const rans_lookup* tables, const uint8_t* of, uint64_t n, const uint8_t* in, const uint8_t* end,
                     uint8_t* symbols) {
  const unsigned lanes = rans_lanes(n);
  if (static_cast<uint64_t>(end - in) < 4 * uint64_t{lanes}) return false;
  uint32_t state[16];
  for (unsigned k = 0; k < lanes; ++k, in += 4)
    if ((state[k] = load<uint32_t>(in)) < rans_low) return false;
  for (uint64_t i = 0; i < n; ++i) {
    uint32_t& x = state[i & (lanes - 1)];
    const uint32_t slot = tables[of ? of[i] : 0].slot[x & (rans_total - 1)];
    symbols[i] = static_cast<uint8_t>(slot >> 24);
    x = ((slot & 0xfff) + 1) * (x >> rans_bits) + (slot >> 12 & 0xfff);
    if (x < rans_low) {
      if (end - in < 2) return false;
      x = x << 16 | load<uint16_t>(in);
      in += 2;
    }
  }
  for (unsigned k = 0; k < lanes; ++k)
    if (state[k] != rans_low) return false;
  return in == end;
}

}  // namespace dr
