// Asymmetric numeral systems in ranges (rANS, Duda 2013): symbols of several tables in one string of 16-bit words.
// Layout: README.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

inline constexpr unsigned rans_bits = 12;  // of a frequency
inline constexpr uint32_t rans_total = 1u << rans_bits;
inline constexpr uint32_t rans_low = 1u << 16;  // states are in [2^16, 2^32)
inline constexpr unsigned rans_symbols_max = 256;

// States that take turns, symbol i belongs to state i mod lanes: decoders work on all at once.
inline constexpr unsigned rans_lanes_max = 16;
constexpr unsigned rans_lanes(uint64_t n) { return n < 2048 ? 1 : rans_lanes_max; }
// A symbol writes one word at most.
constexpr uint64_t rans_bound(uint64_t n) { return 2 * n + 4 * uint64_t{rans_lanes(n)}; }

// Frequencies with the sum rans_total from counts, not all 0: symbols that occur have one of at least 1. Returns the number
// of symbols: those from there on do not occur.
DR_HD inline uint32_t rans_fit(const uint32_t* counts, uint32_t n, uint16_t* frequency) {
  uint64_t all = 0;
  uint32_t symbols = 0;
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
  // The largest frequency absorbs the rounding and the minimum of 1 for rare symbols.
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
  return symbols;
}

// Bytes: symbols − 1, and all frequencies but the last as varints.
DR_HD inline uint8_t* rans_put_frequencies(const uint16_t* frequency, uint32_t symbols, uint8_t* out) {
  *out++ = static_cast<uint8_t>(symbols - 1);
  for (uint32_t s = 0; s + 1 < symbols; ++s) out = put_varint(out, frequency[s]);
  return out;
}
// Returns the end, or nullptr: not of at most `most` symbols.
DR_HD inline const uint8_t* rans_get_frequencies(const uint8_t* in, const uint8_t* end, uint32_t most,
                                                 uint16_t* frequency, uint32_t& symbols) {
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
  return in;
}

// x div f = x · reciprocal >> 44 for all x < f · 2^20, with reciprocal = ⌈2^44 / f⌉: it is above by less than 1, so the
// product is above x / f · 2^44 by less than x < 2^32 <= 2^44 / f; and below 2^64, for f <= 2^12.
DR_HD constexpr uint64_t rans_reciprocal(uint32_t f) { return ((uint64_t{1} << 44) + f - 1) / f; }

// Frequencies of symbols, with the sum rans_total.
struct rans_table {
  uint32_t symbols = 0;  // those from here on have frequency 0
  std::array<uint16_t, rans_symbols_max> frequency{}, start{};

  // From counts, not all 0.
  void fit(const uint32_t* counts, uint32_t n) {
    symbols = rans_fit(counts, n, frequency.data());
    set_starts();
  }

  void set_starts() {
    uint32_t at = 0;
    for (uint32_t s = 0; s < symbols; ++s) {
      start[s] = static_cast<uint16_t>(at);
      at += frequency[s];
    }
  }

  uint8_t* put(uint8_t* out) const { return rans_put_frequencies(frequency.data(), symbols, out); }
  static constexpr size_t size_max(uint32_t symbols) { return 2 * size_t{symbols} - 1; }

  // Returns the end, or nullptr: not a table of at most `max_symbols` symbols.
  const uint8_t* get(const uint8_t* in, const uint8_t* end, uint32_t max_symbols) {
    in = rans_get_frequencies(in, end, max_symbols, frequency.data(), symbols);
    if (in) set_starts();
    return in;
  }
};

// What a decoder looks up by the low bits of a state: symbol · 2^24 + offset in its range · 2^12 + frequency − 1.
struct rans_lookup {
  std::array<uint32_t, rans_total> slot;

  // names [t.symbols]: what symbols decode to; nullptr: themselves
  explicit rans_lookup(const rans_table& t, const uint8_t* names = nullptr) {
    uint32_t at = 0;
    for (uint32_t s = 0; s < t.symbols; ++s) {
      const uint32_t name = names ? names[s] : s;
      for (uint32_t k = 0; k < t.frequency[s]; ++k) slot[at++] = name << 24 | k << 12 | (t.frequency[s] - 1u);
    }
  }
};

// What an encoder looks up by a symbol. Vectors take rows of several tables from one array.
struct alignas(64) rans_code {
  std::array<uint32_t, rans_symbols_max> range{};     // start · 2^16 + frequency
  std::array<uint64_t, rans_symbols_max> reciprocal;  // rans_reciprocal of the frequency
  // In vectors: x div f is the product, rounded down, or 1 more. By roundings, each by a factor of 1 ± 2^-23 at most (two
  // here in the mode of the thread, two there to nearest), and the 2^-21 it is above x / f · (1 - 14 · 2^-24), and never
  // above x / f; of x / f < 2^20 that is less than 1.
  std::array<float, rans_symbols_max> inverse{};
  uint32_t end = 0;  // symbols are below

  // names [t.symbols]: of symbols in what is encoded, ascending; nullptr: themselves
  void set(const rans_table& t, const uint8_t* names = nullptr) {
    for (uint32_t s = 0; s < t.symbols; ++s) {
      const uint32_t name = names ? names[s] : s, f = t.frequency[s];
      end = name + 1;
      if (!f) continue;
      range[name] = uint32_t{t.start[s]} << 16 | f;
      reciprocal[name] = rans_reciprocal(f);
      inverse[name] = 1.0f / static_cast<float>(f) * (1 - 0x1p-21f);
    }
  }
};

// A string that is written from its last symbol to its first, downwards from `at`: then a decoder reads states and words
// forwards. rans_bound(n) bytes before `at` are its room.
struct rans_output {
  const uint8_t* symbols;
  const uint8_t* of;  // code[of[i]] has symbol i; nullptr: code[0] has all
  uint64_t n;
  uint8_t* at;
  uint32_t state[rans_lanes_max];
};
// A string that is read.
struct rans_input {
  const uint8_t *in, *end;
  const uint8_t* of;
  uint64_t n;
  uint8_t* symbols;
  uint32_t state[rans_lanes_max];
};
// Side by side, so that their states hide one another's latency: 1 or 4; to decode, 8, too, where registers of 512 bits
// have their states.
inline constexpr unsigned rans_strings_max = 8;
constexpr unsigned rans_get_most(cpu_level level) { return level == cpu_level::avx512 ? 8 : 4; }

DR_EVERYWHERE void rans_put_symbol(const rans_code* codes, rans_output& s, uint64_t i, unsigned lane) {
  const rans_code& code = codes[s.of ? s.of[i] : 0];
  const uint8_t symbol = s.symbols[i];
  const uint32_t range = code.range[symbol], f = range & 0xffff;
  uint32_t x = s.state[lane];
  store(s.at - 2, static_cast<uint16_t>(x));  // (without a branch, which would often be mispredicted)
  const uint32_t full = x >> 20 >= f;         // x >= f · 2^20
  s.at -= 2 * full;
  x >>= 16 * full;
  const auto quotient = static_cast<uint32_t>(x * code.reciprocal[symbol] >> 44);
  s.state[lane] = x + quotient * (rans_total - f) + (range >> 16);
}
// Symbols [0, 16 · groups) of `count` strings of 16 states each, from the last; count is 1 or 4.
DR_EVERYWHERE void rans_put_groups_with(const rans_code* codes, rans_output* strings, unsigned count, uint64_t groups) {
  for (unsigned k = 0; k < count; ++k) {
    rans_output s = strings[k];
    for (uint64_t i = groups * rans_lanes_max; i-- > 0;) rans_put_symbol(codes, s, i, i % rans_lanes_max);
    strings[k] = s;
  }
}
inline void rans_put_groups_scalar(const rans_code* codes, rans_output* strings, unsigned count, uint64_t groups) {
  rans_put_groups_with(codes, strings, count, groups);
}
void rans_put_groups_avx2(const rans_code* codes, rans_output* strings, unsigned count, uint64_t groups);
void rans_put_groups_avx512(const rans_code* codes, rans_output* strings, unsigned count, uint64_t groups);
inline constexpr cpu_table<decltype(&rans_put_groups_scalar)> rans_put_groups{
    rans_put_groups_scalar, on_x86(rans_put_groups_avx2), on_x86(rans_put_groups_avx512)};

// The first groups of 16 symbols of such strings (or of 8), at most `groups`; `readable` is the end of the memory behind
// all of them. Returns the number of decoded groups per string: it omits the last ones, near the end of the memory. An `in` may be after
// its `end` then.
inline uint64_t rans_get_groups_scalar(const rans_lookup* tables, rans_input* strings, unsigned count, uint64_t groups,
                                       const uint8_t* readable) {
  for (uint64_t g = 0; g < groups; ++g) {
    for (unsigned k = 0; k < count; ++k)
      if (readable - strings[k].in < ptrdiff_t{2 * rans_lanes_max}) return g;
    for (unsigned k = 0; k < count; ++k) {
      rans_input& s = strings[k];
      const uint8_t* in = s.in;
      for (unsigned lane = 0; lane < rans_lanes_max; ++lane) {
        const uint64_t i = g * rans_lanes_max + lane;
        const uint32_t x = s.state[lane], slot = tables[s.of ? s.of[i] : 0].slot[x & (rans_total - 1)];
        const uint32_t next = ((slot & 0xfff) + 1) * (x >> rans_bits) + (slot >> 12 & 0xfff);
        const uint32_t less = next < rans_low, longer = next << 16 | load<uint16_t>(in);
        s.symbols[i] = static_cast<uint8_t>(slot >> 24);
        s.state[lane] = next ^ ((next ^ longer) & (0 - less));
        in += 2 * less;
      }
      s.in = in;
    }
  }
  return groups;
}
uint64_t rans_get_groups_avx2(const rans_lookup* tables, rans_input* strings, unsigned count, uint64_t groups,
                              const uint8_t* readable);
uint64_t rans_get_groups_avx512(const rans_lookup* tables, rans_input* strings, unsigned count, uint64_t groups,
                                const uint8_t* readable);
inline constexpr cpu_table<decltype(&rans_get_groups_scalar)> rans_get_groups{
    rans_get_groups_scalar, on_x86(rans_get_groups_avx2), on_x86(rans_get_groups_avx512)};

// Encodes 1 or 4 strings. Each begins at its `at` then, and ends where that was.
inline void rans_put_strings(const rans_code* codes, rans_output* strings, unsigned count, cpu_level level) {
  uint64_t groups = UINT64_MAX;
  for (unsigned k = 0; k < count; ++k) {
    const uint64_t n = strings[k].n, own = rans_lanes(n) == 1 ? 0 : n / rans_lanes_max;
    groups = own < groups ? own : groups;
  }
  for (unsigned k = 0; k < count; ++k) {
    rans_output& s = strings[k];
    for (uint32_t& x : s.state) x = rans_low;
    for (uint64_t i = s.n; i-- > groups * rans_lanes_max;)
      rans_put_symbol(codes, s, i, static_cast<unsigned>(i & (rans_lanes(s.n) - 1)));
  }
  if (groups) rans_put_groups.at(level)(codes, strings, count, groups);
  for (unsigned k = 0; k < count; ++k) {
    rans_output& s = strings[k];
    for (unsigned lane = rans_lanes(s.n); lane-- > 0;) {
      s.at -= 4;
      store(s.at, s.state[lane]);
    }
  }
}

// Decodes 1, 4 or 8 strings [in, end); the last four of 8 use the next table. Returns false if a string is invalid.
// `readable` >= all ends.
inline bool rans_get_strings(const rans_lookup* tables, rans_input* strings, unsigned count, const uint8_t* readable,
                             cpu_level level) {
  if (count > rans_get_most(level))
    return rans_get_strings(tables, strings, 4, readable, level) &&
           rans_get_strings(tables + 1, strings + 4, 4, readable, level);
  uint64_t groups = UINT64_MAX;
  for (unsigned k = 0; k < count; ++k) {
    rans_input& s = strings[k];
    const unsigned lanes = rans_lanes(s.n);
    if (static_cast<uint64_t>(s.end - s.in) < 4 * uint64_t{lanes}) return false;
    for (unsigned lane = 0; lane < lanes; ++lane, s.in += 4)
      if ((s.state[lane] = load<uint32_t>(s.in)) < rans_low) return false;
    const uint64_t own = lanes == 1 ? 0 : s.n / rans_lanes_max;
    groups = own < groups ? own : groups;
  }
  if (groups) groups = rans_get_groups.at(level)(tables, strings, count, groups, readable);
  for (unsigned k = 0; k < count; ++k) {
    rans_input s = strings[k];
    const rans_lookup* const own = tables + k / 4;
    const unsigned lanes = rans_lanes(s.n);
    for (uint64_t i = groups * rans_lanes_max; i < s.n; ++i) {
      uint32_t& x = s.state[i & (lanes - 1)];
      const uint32_t slot = own[s.of ? s.of[i] : 0].slot[x & (rans_total - 1)];
      s.symbols[i] = static_cast<uint8_t>(slot >> 24);
      x = ((slot & 0xfff) + 1) * (x >> rans_bits) + (slot >> 12 & 0xfff);
      if (x < rans_low) {
        if (s.end - s.in < 2) return false;
        x = x << 16 | load<uint16_t>(s.in);
        s.in += 2;
      }
    }
    for (unsigned lane = 0; lane < lanes; ++lane)
      if (s.state[lane] != rans_low) return false;
    if (s.in != s.end) return false;
  }
  return true;
}

// One string. room: rans_bound(n) bytes, at whose end it ends. Returns where it begins.
inline uint8_t* rans_put(const rans_code* codes, const uint8_t* symbols, const uint8_t* of, uint64_t n, uint8_t* room) {
  rans_output s{symbols, of, n, room + rans_bound(n), {}};
  rans_put_strings(codes, &s, 1, cpu());
  return s.at;
}

// Decodes [in, end), which must be all of the string. Returns false if it is not one.
inline bool rans_get(const rans_lookup* tables, const uint8_t* of, uint64_t n, const uint8_t* in, const uint8_t* end,
                     uint8_t* symbols) {
  rans_input s{in, end, of, n, symbols, {}};
  return rans_get_strings(tables, &s, 1, end, cpu());
}

}  // namespace dr
