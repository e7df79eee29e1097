// Words as planes of bytes, of which those that are not uniform are coded (SPEC.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "codecs/family/rans/rans.hpp"

namespace dr {

inline constexpr uint64_t planes_block = uint64_t{1} << 18;  // words
// Words of a block from which a coded plane has rans_strings_max strings: those take some 150 bytes more than one.
inline constexpr uint64_t planes_strings_from = uint64_t{1} << 16;
enum planes_mode : uint8_t { planes_raw, planes_coded, planes_constant };

// ---- Words and planes -----------------------------------------------------------------------------------------

// Numbers are turned to the left by a bit, the sign behind the mantissa: then the exponents of bf16 and f32 are a byte.
template <class Bits, bool number>
struct planes_word {
  using bits = Bits;
  static constexpr unsigned size = sizeof(Bits);
  static constexpr Bits turned(Bits w) { return number ? static_cast<Bits>(w << 1 | w >> (8 * size - 1)) : w; }
  static constexpr Bits turned_back(Bits w) { return number ? static_cast<Bits>(w >> 1 | w << (8 * size - 1)) : w; }
};

// planes[p][i] is byte p of word i, from the lowest.
template <class Word>
DR_EVERYWHERE void planes_split_with(const typename Word::bits* words, uint64_t n, uint8_t* const* planes) {
  for (uint64_t i = 0; i < n; ++i) {
    const auto w = Word::turned(words[i]);
    for (unsigned p = 0; p < Word::size; ++p) planes[p][i] = static_cast<uint8_t>(w >> 8 * p);
  }
}
template <class Word>
DR_EVERYWHERE void planes_join_with(const uint8_t* const* planes, uint64_t n, typename Word::bits* words) {
  using bits = typename Word::bits;
  for (uint64_t i = 0; i < n; ++i) {
    bits w = 0;
    for (unsigned p = 0; p < Word::size; ++p) w = static_cast<bits>(w | static_cast<bits>(bits{planes[p][i]} << 8 * p));
    words[i] = Word::turned_back(w);
  }
}
template <class Word>
void planes_split_scalar(const typename Word::bits* words, uint64_t n, uint8_t* const* planes) {
  planes_split_with<Word>(words, n, planes);
}
template <class Word>
void planes_join_scalar(const uint8_t* const* planes, uint64_t n, typename Word::bits* words) {
  planes_join_with<Word>(planes, n, words);
}
template <class Word>
void planes_split_avx2(const typename Word::bits* words, uint64_t n, uint8_t* const* planes);
template <class Word>
void planes_join_avx2(const uint8_t* const* planes, uint64_t n, typename Word::bits* words);
template <class Word>
void planes_split_avx512(const typename Word::bits* words, uint64_t n, uint8_t* const* planes);
template <class Word>
void planes_join_avx512(const uint8_t* const* planes, uint64_t n, typename Word::bits* words);
template <class Word>
inline constexpr cpu_table<decltype(&planes_split_scalar<Word>)> planes_split{
    planes_split_scalar<Word>, on_x86(planes_split_avx2<Word>), on_x86(planes_split_avx512<Word>)};
template <class Word>
inline constexpr cpu_table<decltype(&planes_join_scalar<Word>)> planes_join{
    planes_join_scalar<Word>, on_x86(planes_join_avx2<Word>), on_x86(planes_join_avx512<Word>)};

// What bytes there are: the least and the largest, and the least but 0 (255 if there is none).
struct planes_range {
  uint8_t least, above_zero, most;
};
DR_EVERYWHERE planes_range planes_range_with(const uint8_t* bytes, uint64_t n) {
  uint8_t less = 255, most = 0, least = 255;
  for (uint64_t i = 0; i < n; ++i) {
    const uint8_t b = bytes[i], below = static_cast<uint8_t>(b - 1);  // 255 for 0
    least = b < least ? b : least;
    less = below < less ? below : less;
    most = b > most ? b : most;
  }
  return {least, static_cast<uint8_t>(less == 255 ? 255 : less + 1), most};
}
inline planes_range planes_range_scalar(const uint8_t* bytes, uint64_t n) { return planes_range_with(bytes, n); }
planes_range planes_range_avx2(const uint8_t* bytes, uint64_t n);
planes_range planes_range_avx512(const uint8_t* bytes, uint64_t n);
inline constexpr cpu_table<decltype(&planes_range_scalar)> planes_range_of{
    planes_range_scalar, on_x86(planes_range_avx2), on_x86(planes_range_avx512)};

// Each byte less `by`, 0 if it is below.
DR_EVERYWHERE void planes_lower_with(uint8_t* bytes, uint64_t n, uint8_t by) {
  for (uint64_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>((bytes[i] > by ? bytes[i] : by) - by);
}
inline void planes_lower_scalar(uint8_t* bytes, uint64_t n, uint8_t by) { planes_lower_with(bytes, n, by); }
void planes_lower_avx2(uint8_t* bytes, uint64_t n, uint8_t by);
void planes_lower_avx512(uint8_t* bytes, uint64_t n, uint8_t by);
inline constexpr cpu_table<decltype(&planes_lower_scalar)> planes_lower{planes_lower_scalar, on_x86(planes_lower_avx2),
                                                                        on_x86(planes_lower_avx512)};

// ---- Encode ---------------------------------------------------------------------------------------------------

// Scratch of a block of at most n words of some bytes each.
struct planes_room {
  uint8_t* planes[8];
  uint8_t* coded;  // rans_strings_max strings, each rans_bound of its symbols
  rans_lookup* lookup;

  static constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr uint64_t words(uint64_t n) { return n < planes_block ? n : planes_block; }
  // From plane to plane, not a multiple of 4096, at which loads would wait for stores.
  static constexpr uint64_t stride(uint64_t n) { return aligned(words(n)) + 192; }
  static constexpr uint64_t coded_size(uint64_t n) {
    return rans_strings_max * aligned(rans_bound(ceil_div(words(n), rans_strings_max) + 64));
  }
  static constexpr uint64_t encode_size(uint64_t n, unsigned size) { return size * stride(n) + coded_size(n); }
  static constexpr uint64_t decode_size(uint64_t n, unsigned size) { return size * stride(n) + sizeof(rans_lookup); }
  static planes_room at(std::byte* scratch, uint64_t n, unsigned size) {
    planes_room room{};
    auto* at = reinterpret_cast<uint8_t*>(scratch);
    for (unsigned p = 0; p < size; ++p, at += stride(n)) room.planes[p] = at;
    room.coded = at;
    room.lookup = reinterpret_cast<rans_lookup*>(at);
    return room;
  }
};

constexpr uint64_t planes_bound(uint64_t n, unsigned size) {
  const uint64_t blocks = ceil_div(n, planes_block);
  return n * size + blocks * (size + 4);
}

struct planes_strings {
  unsigned count;
  uint64_t each;  // symbols, but of the last
  explicit planes_strings(uint64_t n)
      : count(n < planes_strings_from ? 1 : rans_strings_max),
        each(count == 1 ? n : ceil_div(n, uint64_t{count} * 64) * 64) {}
  uint64_t of(unsigned k, uint64_t n) const { return k + 1 < count ? each : n - (count - 1) * each; }
};

// Counts 64 bytes of each `step`.
inline void planes_count(const uint8_t* bytes, uint64_t n, uint64_t step, uint32_t* counts) {
  uint32_t parts[4][256] = {};
  for (uint64_t i = 0; i < n; i += step) {
    const uint64_t end = n - i < 64 ? n : i + 64;
    uint64_t k = i;
    for (; k + 8 <= end; k += 8) {
      const auto eight = load<uint64_t>(bytes + k);
      for (unsigned j = 0; j < 8; ++j) ++parts[j % 4][eight >> 8 * j & 255];
    }
    for (; k < end; ++k) ++parts[0][bytes[k]];
  }
  for (unsigned s = 0; s < 256; ++s) counts[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
}

// Whether a code might save a 64th. Of the entropy that of Rényi of order 2 tells, which is not above it: of 256
// symbols whose probabilities have squares with the sum (1 + e) / 256 it is 8 − log2(1 + e), and where e is small the
// entropy is about 8 − 0.72 e. An e below 0.17 saves a 64th at most where all are about as frequent, and a 35th anywhere.
inline bool planes_may_pay(const uint32_t* counts) {
  uint64_t n = 0, squares = 0;
  for (unsigned s = 0; s < 256; ++s) {
    n += counts[s];
    squares += uint64_t{counts[s]} * (counts[s] ? counts[s] - 1 : 0);
  }
  // squares · 256 > 1.17 n², in integers below 2^64: n <= 2^18
  return squares * 256 * 100 > 117 * n * (n - 1);
}

// Codes a plane of n bytes behind `out`, if that saves a 64th of them; else returns nullptr. Changes the plane
// meanwhile.
inline uint8_t* planes_code(uint8_t* plane, uint64_t n, const planes_room& room, uint8_t* out, cpu_level level) {
  // Of a large plane a share is counted; then all that lies between the least and the largest has a frequency.
  constexpr uint64_t all_below = uint64_t{1} << 15, share = 8;
  if (n < 64) return nullptr;
  uint32_t counts[256];
  const bool sampled = n > all_below;
  if (sampled) {  // at a glance, which most planes need no more than
    planes_count(plane, n, 4096, counts);
    if (!planes_may_pay(counts)) return nullptr;
  }
  planes_count(plane, n, sampled ? 64 * share : 64, counts);
  if (!planes_may_pay(counts)) return nullptr;
  const planes_range r = planes_range_of.at(level)(plane, n);
  const auto base = static_cast<uint8_t>(r.least ? r.least : r.above_zero - 1);
  const unsigned span = r.most - base + 1u;
  const bool few = span <= 32;
  // 0 is lowered to 0 where it occurs, what lies between it and the next does not.
  const auto raised = [&](unsigned lowered) { return static_cast<uint8_t>(lowered || r.least ? base + lowered : 0); };
  if (few)
    planes_lower.at(level)(plane, n, base);
  else if (sampled)
    planes_count(plane, n, 64, counts);
  uint8_t names[256], coded[256];  // of symbols: what they stand for, and what stands for them in the plane now
  uint32_t of[256], symbols = 0;
  for (unsigned b = 0; b < (few ? span : 256); ++b) {
    const uint8_t name = few ? raised(b) : static_cast<uint8_t>(b);
    const uint32_t count = few && sampled ? counts[name] * 16 + 1 : counts[name];
    if (!count) continue;
    names[symbols] = name;
    coded[symbols] = static_cast<uint8_t>(b);
    of[symbols++] = count;
  }
  rans_table table;
  table.fit(of, symbols);
  rans_code code;
  code.set(table, coded);

  const planes_strings split(n);
  rans_output strings[rans_strings_max];
  uint8_t* ends[rans_strings_max];
  uint8_t* end = room.coded;
  for (unsigned k = 0; k < split.count; ++k) {
    const uint64_t m = split.of(k, n);
    ends[k] = end += rans_bound(m);
    strings[k] = {plane + k * split.each, nullptr, m, end, {}};
  }
  rans_put_strings(&code, strings, split.count, level);
  uint8_t head[rans_table::size_max(256) + 256 + 4 * rans_strings_max];
  uint8_t* at = table.put(head);
  at = std::copy_n(names, symbols, at);
  uint64_t size = 0;
  for (unsigned k = 0; k < split.count; ++k, at += 4) {
    store(at, static_cast<uint32_t>(ends[k] - strings[k].at));
    size += static_cast<uint64_t>(ends[k] - strings[k].at);
  }
  size += static_cast<uint64_t>(at - head);
  if (size + n / 64 >= n) {
    if (few)
      for (uint64_t i = 0; i < n; ++i) plane[i] = raised(plane[i]);
    return nullptr;
  }
  out = std::copy(head, at, out);
  for (unsigned k = 0; k < split.count; ++k) out = std::copy(strings[k].at, ends[k], out);
  return out;
}

// A block of 1 <= n <= planes_block words. out: n · size + size bytes. Returns the end.
template <class Word>
uint8_t* planes_encode(const typename Word::bits* words, uint64_t n, const planes_room& room, uint8_t* out,
                       cpu_level level) {
  planes_split<Word>.at(level)(words, n, room.planes);
  uint8_t* const modes = out;
  out += Word::size;
  for (unsigned p = 0; p < Word::size; ++p) {
    uint8_t* const plane = room.planes[p];
    modes[p] = planes_raw;
    if (n > 1 && std::memcmp(plane, plane + 1, n - 1) == 0) {  // (one byte is raw)
      modes[p] = planes_constant;
      *out++ = *plane;
    } else if (uint8_t* const end = planes_code(plane, n, room, out, level)) {
      modes[p] = planes_coded;
      out = end;
    }
  }
  for (unsigned p = 0; p < Word::size; ++p)
    if (modes[p] == planes_raw) out = std::copy_n(room.planes[p], n, out);
  return out;
}

// ---- Decode ---------------------------------------------------------------------------------------------------

// The coded plane at `in`. Returns its end, or nullptr: it is none. end <= readable
inline const uint8_t* planes_decode_plane(const uint8_t* in, const uint8_t* end, const uint8_t* readable, uint64_t n,
                                          const planes_room& room, uint8_t* plane, cpu_level level) {
  rans_table table;
  in = table.get(in, end, rans_symbols_max);
  const planes_strings split(n);
  if (!in || static_cast<uint64_t>(end - in) < table.symbols + 4 * split.count) return nullptr;
  const uint8_t* const names = in;
  for (uint32_t s = 1; s < table.symbols; ++s)
    if (names[s] <= names[s - 1] || !table.frequency[s - 1]) return nullptr;
  const uint8_t* sizes = in + table.symbols;
  in = sizes + 4 * split.count;
  rans_input strings[rans_strings_max];
  for (unsigned k = 0; k < split.count; ++k, sizes += 4) {
    const auto size = load<uint32_t>(sizes);
    if (size > static_cast<uint64_t>(end - in)) return nullptr;
    strings[k] = {in, in + size, nullptr, split.of(k, n), plane + k * split.each, {}};
    in += size;
  }
  new (room.lookup) rans_lookup(table, names);
  return rans_get_strings(room.lookup, strings, split.count, readable, level) ? in : nullptr;
}

// Decodes a block, all of [in, end). Returns false if it is none. readable >= end: of the memory.
template <class Word>
bool planes_decode(const uint8_t* in, const uint8_t* end, const uint8_t* readable, uint64_t n, const planes_room& room,
                   typename Word::bits* words, cpu_level level) {
  if (static_cast<uint64_t>(end - in) < Word::size) return false;
  uint8_t modes[Word::size];
  std::memcpy(modes, in, Word::size);
  in += Word::size;
  const uint8_t* planes[Word::size];
  uint64_t raw = 0;
  for (unsigned p = 0; p < Word::size; ++p) {
    planes[p] = room.planes[p];
    if (modes[p] == planes_constant) {
      if (in == end || n == 1) return false;
      std::memset(room.planes[p], *in++, n);
    } else if (modes[p] == planes_coded) {
      in = planes_decode_plane(in, end, readable, n, room, room.planes[p], level);
      if (!in) return false;
    } else if (modes[p] != planes_raw) {
      return false;
    } else {
      raw += n;
    }
  }
  if (static_cast<uint64_t>(end - in) != raw) return false;
  for (unsigned p = 0; p < Word::size; ++p)
    if (modes[p] == planes_raw) {
      planes[p] = in;
      in += n;
    }
  planes_join<Word>.at(level)(planes, n, words);
  return true;
}

}  // namespace dr
