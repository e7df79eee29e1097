// Words as planes of bytes, of which those that are not uniform are coded (SPEC.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "codecs/family/rans/rans.hpp"
#include "codecs/value/planes/planes_words_kernel.hpp"

namespace dr {

inline constexpr uint64_t planes_block = uint64_t{1} << 18;  // words
// Words of a block from which a coded plane has planes_strings_max strings: those take some 150 bytes more than one.
inline constexpr uint64_t planes_strings_from = uint64_t{1} << 16;
inline constexpr unsigned planes_strings_max = 4;
enum planes_mode : uint8_t { planes_raw, planes_coded, planes_constant };

// ---- Encode ---------------------------------------------------------------------------------------------------

// Scratch of n words of some bytes each: of one block to encode, of two to decode.
struct planes_scratch {
  uint8_t* planes[2 * 8];  // of the first block, then of the second
  uint8_t* coded;          // for encode: planes_strings_max strings of rans_bound bytes
  rans_lookup* lookup;     // to decode: two

  static constexpr uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr uint64_t words(uint64_t n) { return n < planes_block ? n : planes_block; }
  // From plane to plane, not a multiple of 4096, at which loads would wait for stores.
  static constexpr uint64_t stride(uint64_t n) { return aligned(words(n)) + 192; }
  static constexpr uint64_t coded_size(uint64_t n) {
    return planes_strings_max * aligned(rans_bound(ceil_div(words(n), planes_strings_max) + 64));
  }
  static constexpr uint64_t encode_size(uint64_t n, unsigned size) { return size * stride(n) + coded_size(n); }
  static constexpr uint64_t decode_size(uint64_t n, unsigned size) {
    return 2 * (size * stride(n) + sizeof(rans_lookup));
  }
  static planes_scratch at(std::byte* scratch, uint64_t n, unsigned size) {
    planes_scratch room{};
    auto* at = reinterpret_cast<uint8_t*>(scratch);
    for (unsigned p = 0; p < size; ++p, at += stride(n)) room.planes[p] = at;
    room.coded = at;
    for (unsigned p = size; p < 2 * size; ++p, at += stride(n)) room.planes[p] = at;
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
  uint64_t part;  // symbols, but of the last
  explicit planes_strings(uint64_t n)
      : count(n < planes_strings_from ? 1 : planes_strings_max),
        part(count == 1 ? n : ceil_div(n, uint64_t{count} * 64) * 64) {}
  uint64_t of(unsigned k, uint64_t n) const { return k + 1 < count ? part : n - (count - 1) * part; }
};

// Counts 64 bytes in every `step`.
inline void planes_count(const uint8_t* bytes, uint64_t n, uint64_t step, uint32_t* counts) {
  uint32_t parts[8][256] = {};
  for (uint64_t i = 0; i < n; i += step) {
    const uint64_t end = n - i < 64 ? n : i + 64;
    uint64_t k = i;
    for (; k + 8 <= end; k += 8) {
      const auto eight = load<uint64_t>(bytes + k);
      for (unsigned j = 0; j < 8; ++j) ++parts[j][eight >> 8 * j & 255];
    }
    for (; k < end; ++k) ++parts[0][bytes[k]];
  }
  for (unsigned s = 0; s < 256; ++s) {
    counts[s] = 0;
    for (const auto& part : parts) counts[s] += part[s];
  }
}

// Whether a code might save a 64th. It uses the Rényi entropy of order 2, which is not above Shannon's: of 256
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

// Of large blocks a share is counted, before they are split.
constexpr bool planes_samples(uint64_t n) { return n > uint64_t{1} << 15; }

// Counts the bytes of 64 words in every 512, and decides which planes to code. The others are copied.
template <class Word>
void planes_sample(const typename Word::bits* words, uint64_t n, const planes_scratch& room, uint32_t (*counts)[256],
                   bool* tried, cpu_level level) {
  constexpr uint64_t step = 512;
  const uint64_t stride = planes_scratch::aligned(n / 8 + 64);  // as many samples at most; room.coded has more in all
  planes_target<Word> at;
  for (unsigned p = 0; p < Word::size; ++p) at.planes[p] = room.coded + p * stride;
  uint64_t sampled = 0;
  for (uint64_t i = 0; i < n; i += step) {
    const uint64_t m = n - i < 64 ? n - i : 64;
    planes_split<Word>.at(level)(words + i, m, at);
    at = at.behind(m);
    sampled += m;
  }
  for (unsigned p = 0; p < Word::size; ++p) {
    const uint8_t* const plane = room.coded + p * stride;
    planes_count(plane, sampled, step, counts[p]);  // a quick test, which is enough for most planes
    tried[p] = planes_may_pay(counts[p]);
    if (!tried[p]) continue;
    planes_count(plane, sampled, 64, counts[p]);
    tried[p] = planes_may_pay(counts[p]);
  }
}

// Codes a plane of n bytes to `out`, if that saves a 64th of them; else returns nullptr. counts: of a share, if the
// block has been sampled. Changes the plane meanwhile.
inline uint8_t* planes_code(uint8_t* plane, uint64_t n, uint32_t* counts, const planes_scratch& room, uint8_t* out,
                            cpu_level level) {
  if (n < 64) return nullptr;
  const bool sampled = planes_samples(n);
  if (!sampled) {
    planes_count(plane, n, 64, counts);
    if (!planes_may_pay(counts)) return nullptr;
  }
  // Of a share, all that lies between the least and the largest has a frequency.
  const planes_range r = planes_range_of.at(level)(plane, n);
  const auto base = static_cast<uint8_t>(r.least ? r.least : r.above_zero - 1);
  const unsigned span = r.largest - base + 1u;
  const bool few = span <= 32;
  // 0 is lowered to 0 where it occurs, what lies between it and the next does not.
  const auto raised = [&](unsigned lowered) { return static_cast<uint8_t>(lowered || r.least ? base + lowered : 0); };
  if (few)
    planes_lower.at(level)(plane, n, base);
  else if (sampled)
    planes_count(plane, n, 64, counts);
  uint8_t names[256], coded[256];  // of symbols: their bytes, and their current codes in the plane
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
  rans_output strings[planes_strings_max];
  uint8_t* ends[planes_strings_max];
  uint8_t* end = room.coded;
  for (unsigned k = 0; k < split.count; ++k) {
    const uint64_t m = split.of(k, n);
    ends[k] = end += rans_bound(m);
    strings[k] = {plane + k * split.part, nullptr, m, end, {}};
  }
  rans_put_strings(&code, strings, split.count, level);
  uint8_t head[rans_table::size_max(256) + 256 + 4 * planes_strings_max];
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

// A block of 1 <= n <= planes_block words. out: n · size + size bytes. past: copies bypass the caches.
// Returns the end.
template <class Word>
uint8_t* planes_encode(const typename Word::bits* words, uint64_t n, const planes_scratch& room, uint8_t* out,
                       bool past, cpu_level level) {
  constexpr unsigned size = Word::size;
  uint32_t counts[size][256];
  bool tried[size];
  std::fill_n(tried, size, n > 1);  // (one byte is raw)
  if (planes_samples(n)) planes_sample<Word>(words, n, room, counts, tried, level);
  // Planes that are not tried are split to where they stay.
  uint8_t* const modes = out;
  planes_target<Word> to;
  uint8_t* end = out + size;
  for (unsigned p = 0; p < size; ++p) {
    to.planes[p] = tried[p] ? room.planes[p] : end;
    end += tried[p] ? 0 : n;
    to.past |= uint32_t{past && !tried[p]} << p;
  }
  planes_split<Word>.at(level)(words, n, to);
  uint8_t* raw = out + size;  // where the next raw plane is, or would be
  for (unsigned p = 0; p < size; ++p) {
    uint8_t* const plane = to.planes[p];
    modes[p] = planes_raw;
    if (tried[p]) {
      if (std::memcmp(plane, plane + 1, n - 1) == 0) {
        modes[p] = planes_constant;
        *end++ = *plane;
        continue;
      }
      if (uint8_t* const coded = planes_code(plane, n, counts[p], room, end, level)) {
        modes[p] = planes_coded;
        end = coded;
        continue;
      }
      std::memmove(raw + n, raw, static_cast<size_t>(end - raw));
      std::copy_n(plane, n, raw);
      end += n;
    }
    raw += n;
  }
  return end;
}

// ---- Decode ---------------------------------------------------------------------------------------------------

// A coded plane that has been read, but for its strings.
struct planes_coded_plane {
  rans_table table;
  const uint8_t* names;
  rans_input strings[planes_strings_max];
};

// Decodes the coded plane at `in` to `plane`. Returns its end, or nullptr if invalid.
inline const uint8_t* planes_read_plane(const uint8_t* in, const uint8_t* end, uint64_t n, uint8_t* plane,
                                        planes_coded_plane& coded) {
  in = coded.table.get(in, end, rans_symbols_max);
  const planes_strings split(n);
  if (!in || static_cast<uint64_t>(end - in) < coded.table.symbols + 4 * split.count) return nullptr;
  coded.names = in;
  for (uint32_t s = 1; s < coded.table.symbols; ++s)
    if (coded.names[s] <= coded.names[s - 1] || !coded.table.frequency[s - 1]) return nullptr;
  const uint8_t* sizes = in + coded.table.symbols;
  in = sizes + 4 * split.count;
  for (unsigned k = 0; k < split.count; ++k, sizes += 4) {
    const auto size = load<uint32_t>(sizes);
    if (size > static_cast<uint64_t>(end - in)) return nullptr;
    coded.strings[k] = {in, in + size, nullptr, split.of(k, n), plane + k * split.part, {}};
    in += size;
  }
  return in;
}

// A block that is read: where its planes are, or will be.
template <class Word>
struct planes_read {
  uint8_t modes[Word::size];
  const uint8_t* planes[Word::size];
  planes_coded_plane coded[Word::size];

  // Decodes all of [in, end). Returns false if it is not a valid block.
  bool read(const uint8_t* in, const uint8_t* end, uint64_t n, uint8_t* const* room) {
    if (static_cast<uint64_t>(end - in) < Word::size) return false;
    std::memcpy(modes, in, Word::size);
    in += Word::size;
    for (unsigned p = 0; p < Word::size; ++p) {
      planes[p] = room[p];
      if (modes[p] != planes_raw) continue;
      if (static_cast<uint64_t>(end - in) < n) return false;
      planes[p] = in;
      in += n;
    }
    for (unsigned p = 0; p < Word::size; ++p) {
      if (modes[p] == planes_constant) {
        if (in == end || n == 1) return false;
        std::memset(room[p], *in++, n);
      } else if (modes[p] == planes_coded) {
        in = planes_read_plane(in, end, n, room[p], coded[p]);
        if (!in) return false;
      } else if (modes[p] != planes_raw) {
        return false;
      }
    }
    return in == end;
  }
};

// Decodes n words: one block [in, end), or two, [in, middle) and [middle, end), whose strings are decoded side by side.
// Returns false if they are none. readable >= end: of the memory. past: words go past the caches.
template <class Word>
bool planes_decode(const uint8_t* in, const uint8_t* middle, const uint8_t* end, const uint8_t* readable, uint64_t n,
                   const planes_scratch& room, typename Word::bits* words, bool past, cpu_level level) {
  planes_read<Word> blocks[2];
  const unsigned count = n > planes_block ? 2 : 1;
  const uint64_t first = count == 2 ? planes_block : n, second = n - first;
  if (!blocks[0].read(in, count == 2 ? middle : end, first, room.planes)) return false;
  if (count == 2 && !blocks[1].read(middle, end, second, room.planes + Word::size)) return false;
  for (unsigned p = 0; p < Word::size; ++p) {
    rans_input strings[2 * planes_strings_max];
    const auto take = [&](unsigned b, unsigned at) {
      planes_coded_plane& coded = blocks[b].coded[p];
      new (room.lookup + at / planes_strings_max) rans_lookup(coded.table, coded.names);
      std::copy_n(coded.strings, planes_strings_max, strings + at);
      return planes_strings(b ? second : first).count;
    };
    const auto has = [&](unsigned b) { return b < count && blocks[b].modes[p] == planes_coded; };
    if (has(0) && has(1) && planes_strings(second).count == planes_strings_max) {
      take(0, 0);
      take(1, planes_strings_max);
      if (!rans_get_strings(room.lookup, strings, 2 * planes_strings_max, readable, level)) return false;
    } else {
      for (unsigned b = 0; b < count; ++b)
        if (has(b) && !rans_get_strings(room.lookup, strings, take(b, 0), readable, level)) return false;
    }
  }
  planes_join<Word>.at(level)(blocks[0].planes, first, words, past);
  if (count == 2) planes_join<Word>.at(level)(blocks[1].planes, second, words + first, past);
  return true;
}

}  // namespace dr
