// Which words of a base change, class by class of their magnitude. Layout: README.md.
#pragma once

#include <algorithm>
#include <cstddef>

#include "codecs/family/classes/class_walk.hpp"
#include "codecs/family/golomb/golomb_payload.hpp"
#include "codecs/family/rans/rans.hpp"

namespace dr {

struct base_words {
  uint32_t word_size;
  const void* words;
  uint64_t n;  // below 2^32
};

enum class changed_coder : uint32_t { golomb, adaptive, bitmap };

// A class of `words` words of which `changed` change.
struct changed_class {
  uint64_t words = 0, changed = 0, size = 0;
  changed_coder coder = changed_coder::golomb;

  golomb_payload golomb() const {
    return {changed, words, golomb_block_log2, coder == changed_coder::adaptive ? adaptive_rule : golomb_rule};
  }
  uint64_t bitmap_size() const { return ceil_div(words, 8); }
};

// Bytes before the bodies: the classes, with their numbers of words and changes and the sizes of their bodies.
inline constexpr uint64_t changed_head_max = 1 + classes_max + classes_max * (5 + 5 + 6);

// Those of one class, at most.
inline constexpr uint64_t changed_head_of_one = 8;

inline uint64_t changed_bound(uint64_t universe, uint64_t count) {
  return changed_head_of_one + golomb_bound(universe, count, golomb_block_log2);
}
// The minimum number of words to code a bitmap, which has its own table.
inline constexpr uint64_t changed_bitmap_words = 32768;

// Scratch of an encode or a decode.
struct changed_scratch {
  uint32_t *rank, *ranks;   // [count], [count + classes_max]: by position, and by class
  uint8_t *of, *bitmap;     // [count], [words / 8 + 8]
  uint8_t *coded, *bodies;  // rans_bound(words / 8), changed_bound

  static uint64_t size(uint64_t universe, uint64_t count) { return lay_out(nullptr, universe, count, nullptr); }
  static changed_scratch at(std::byte* scratch, uint64_t universe, uint64_t count) {
    changed_scratch room;
    lay_out(scratch, universe, count, &room);
    return room;
  }

 private:
  static uint64_t lay_out(std::byte* scratch, uint64_t universe, uint64_t count, changed_scratch* room) {
    uint64_t used = 0;
    const auto take = [&](auto changed_scratch::*member, uint64_t bytes) {
      if (room) room->*member = reinterpret_cast<std::remove_reference_t<decltype(room->*member)>>(scratch + used);
      used += (bytes + 63) / 64 * 64;
    };
    const uint64_t bytes = universe < changed_bitmap_words ? 0 : ceil_div(universe, 8);
    take(&changed_scratch::rank, 4 * count);
    take(&changed_scratch::ranks, 4 * (count + classes_max));
    take(&changed_scratch::of, count);
    take(&changed_scratch::bitmap, bytes + 8);
    take(&changed_scratch::coded, rans_bound(bytes) + rans_table::size_max(256));
    take(&changed_scratch::bodies, changed_bound(universe, count));
    return used;
  }
};

// ---- The choice of classes ----------------------------------------------------------------------------------

// Classes are chosen from a sample: 64 words in every `step`. Where many words change, the changes of the same sample
// are counted; elsewhere these would be too few, and every `stride`-th change is, about so many.
inline constexpr uint64_t sampled_changes = 16384;

inline class_list changed_classes(const base_words& base, const uint32_t* changed, uint64_t count) {
  if (count < 64) return {};
  const bool many = count > base.n / 8;
  uint32_t of_changed[256] = {}, words[256] = {}, weight[256];
  uint64_t sampled = 0;
  with_word(base.word_size, [&](auto word) {
    const auto* const w = static_cast<const decltype(word)*>(base.words);
    const uint64_t stride = std::max<uint64_t>(1, count / sampled_changes);
    for (uint64_t i = 0; !many && i < count; i += stride, ++sampled) ++of_changed[word_key(w[changed[i]])];
    const uint64_t step = std::max<uint64_t>(64, base.n / 1024 / 64 * 64);
    for (uint64_t at = 0; at < base.n; at += step) {
      const uint64_t end = std::min(base.n, at + 64);
      for (uint64_t i = at; i < end; ++i) ++words[word_key(w[i])];
      if (many)
        for (const uint32_t* x = std::lower_bound(changed, changed + count, at); x < changed + count && *x < end;
             ++x, ++sampled)
          ++of_changed[word_key(w[*x])];
    }
  });
  for (uint32_t& n : of_changed) n = static_cast<uint32_t>(sampled ? uint64_t{n} * count / sampled : 0);
  uint64_t seen = 0;
  for (const uint32_t n : words) seen += n;
  for (unsigned key = 0; key < 256; ++key) {
    words[key] = static_cast<uint32_t>(std::max<uint64_t>(of_changed[key], words[key] * base.n / seen));
    weight[key] = static_cast<uint32_t>(of_changed[key] + words[key] * count / base.n);
  }
  const key_groups groups(weight);
  uint64_t changed_before[33] = {}, words_before[33] = {};
  for (unsigned key = 0; key < 256; ++key) {
    changed_before[groups.of[key] + 1] += of_changed[key];
    words_before[groups.of[key] + 1] += words[key];
  }
  for (uint32_t g = 0; g < groups.count; ++g) {
    changed_before[g + 1] += changed_before[g];
    words_before[g + 1] += words_before[g];
  }
  // The entropy of r among n: n log n − r log r − (n − r) log (n − r).
  const auto cost = [&](uint32_t i, uint32_t j) {
    const uint64_t r = changed_before[j] - changed_before[i], n = words_before[j] - words_before[i];
    // (Gaps of few words cost a bit per word; bitmaps do not.)
    if (n < changed_bitmap_words && 2 * r > n) return n << 16;
    const uint64_t parts = x_log2_q16(r) + x_log2_q16(n - r), all = x_log2_q16(n);
    return all > parts ? all - parts : 0;
  };
  return choose_classes(groups.count, groups.begin.data(), uint64_t{8 * 12} << 16, cost);
}

// ---- Encode ---------------------------------------------------------------------------------------------------

// The ranks of a class as a coded bitmap. Returns its size; `room.coded` ends with it, `begin` is where it begins.
inline uint64_t changed_put_bitmap(const changed_class& c, const uint32_t* ranks, const changed_scratch& room,
                                   const uint8_t*& begin, rans_table& table) {
  const uint64_t n = c.bitmap_size();
  std::fill_n(room.bitmap, n, uint8_t{0});
  for (uint64_t i = 0; i < c.changed; ++i)
    room.bitmap[ranks[i] / 8] = static_cast<uint8_t>(room.bitmap[ranks[i] / 8] | 1u << ranks[i] % 8);
  uint32_t counts[256] = {};
  for (uint64_t i = 0; i < n; ++i) ++counts[room.bitmap[i]];
  table.fit(counts, 256);
  rans_code code;
  code.set(table);
  begin = rans_put(&code, room.bitmap, nullptr, n, room.coded);
  return static_cast<uint64_t>(room.coded + rans_bound(n) - begin);
}

// A class into `out`, of which `capacity` bytes are there. Returns false if it may not fit.
inline bool changed_put_class(changed_class& c, const uint32_t* ranks, const changed_scratch& room, uint8_t* out,
                              uint64_t capacity) {
  const bool dense = c.words >= changed_bitmap_words && c.changed > c.words / 6;
  const uint8_t* coded = nullptr;
  uint8_t head[rans_table::size_max(256)];
  uint64_t head_size = 0, coded_size = 0, bitmap_size = UINT64_MAX;
  if (dense) {
    rans_table table;
    coded_size = changed_put_bitmap(c, ranks, room, coded, table);
    head_size = static_cast<uint64_t>(table.put(head) - head);
    bitmap_size = head_size + coded_size;
  }
  // (Where a third and more changes, gaps are never shorter. They always fit: the bound is theirs.)
  const uint64_t bitmap_max = capacity - std::min(capacity, changed_head_of_one);
  if (bitmap_size > bitmap_max || c.changed <= c.words / 3) {
    if (golomb_bound(c.words, c.changed, golomb_block_log2) > capacity) return false;
    c.coder = changed_coder::adaptive;
    const uint64_t adaptive = golomb_size(c.golomb(), ranks);
    c.coder = changed_coder::golomb;
    c.size = golomb_encode(c.golomb(), ranks, out);
    if (adaptive < c.size) {
      c.coder = changed_coder::adaptive;
      c.size = golomb_encode(c.golomb(), ranks, out);
    }
    if (c.size <= bitmap_size) return true;
  }
  c.coder = changed_coder::bitmap;
  c.size = bitmap_size;
  std::copy_n(head, head_size, out);
  std::copy_n(coded, coded_size, out + head_size);
  return true;
}

// All classes into `out`, of which `capacity` bytes are there. Returns the bytes written; 0: they may not fit.
inline uint64_t changed_put(const base_words& base, const uint32_t* changed, uint64_t count, const class_list& classes,
                            const changed_scratch& room, uint8_t* out, uint64_t capacity) {
  class_counts counts{};
  changed_class c[classes_max];
  const uint32_t* ranks[classes_max] = {changed};
  if (classes.count == 1) {
    c[0] = {base.n, count};
  } else {
    const auto of_key = classes.table();
    const auto walk = class_ranks.best();
    uint64_t i = 0;
    for (uint64_t first = 0; first < base.n; first += class_block) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(class_block, base.n - first));
      uint64_t end = i;
      while (end < count && changed[end] < first + n) ++end;
      walk({base.word_size, base.words, first, n, &classes, of_key.data(), changed + i, static_cast<uint32_t>(end - i),
            &counts, room.of + i, room.rank + i});
      i = end;
    }
    for (uint64_t k = 0; k < count; ++k) ++c[room.of[k]].changed;
    uint32_t* to[classes_max];
    uint32_t* at = room.ranks;
    for (uint32_t k = 0; k < classes.count; ++k) {
      c[k].words = counts[k];
      ranks[k] = to[k] = at;
      at += c[k].changed;
    }
    for (uint64_t k = 0; k < count; ++k) *to[room.of[k]]++ = room.rank[k];
  }
  uint64_t used = 0;
  for (uint32_t k = 0; k < classes.count; ++k) {
    if (!c[k].changed) continue;
    if (!changed_put_class(c[k], ranks[k], room, room.bodies + used, changed_bound(base.n, count) - used)) return 0;
    used += c[k].size;
  }
  // The last body ends with the payload.
  uint32_t last = classes.count - 1;
  while (!c[last].changed) --last;
  uint8_t head[changed_head_max];
  uint8_t* at = classes.put(head);
  for (uint32_t k = 0; k < classes.count; ++k) {
    if (k + 1 < classes.count) at = put_varint(put_varint(at, c[k].words), c[k].changed);
    if (c[k].changed) at = put_varint(at, (k == last ? 0 : c[k].size * 4) + static_cast<uint32_t>(c[k].coder));
  }
  const auto head_size = static_cast<uint64_t>(at - head);
  if (head_size + used > capacity) return 0;
  std::copy_n(head, head_size, out);
  std::copy_n(room.bodies, used, out + head_size);
  return head_size + used;
}

// Into changed_bound bytes.
inline uint64_t changed_encode(const base_words& base, const uint32_t* changed, uint64_t count,
                               const changed_scratch& room, uint8_t* out) {
  const uint64_t bound = changed_bound(base.n, count);
  const class_list classes = changed_classes(base, changed, count);
  if (classes.count > 1)
    if (const uint64_t size = changed_put(base, changed, count, classes, room, out, bound)) return size;
  return changed_put(base, changed, count, {}, room, out, bound);
}

// ---- Decode ---------------------------------------------------------------------------------------------------

// The ranks of a class from [in, end). Returns false if it is corrupt.
inline bool changed_get_class(const changed_class& c, const uint8_t* in, const uint8_t* end,
                              const changed_scratch& room, uint32_t* ranks) {
  if (c.coder != changed_coder::bitmap) {
    uint64_t where = 0;
    return golomb_decode(c.golomb(), in, static_cast<size_t>(end - in), ranks, &where);
  }
  if (c.words < changed_bitmap_words) return false;
  const uint64_t n = c.bitmap_size();
  rans_table table;
  in = table.get(in, end, 256);
  if (!in) return false;
  const rans_lookup lookup(table);
  if (!rans_get(&lookup, nullptr, n, in, end, room.bitmap)) return false;
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i)
    for (uint32_t byte = room.bitmap[i]; byte; byte &= byte - 1) {
      if (found == c.changed) return false;
      ranks[found++] = static_cast<uint32_t>(8 * i + countr_zero(byte));
    }
  return found == c.changed && ranks[found - 1] < c.words;
}

// Returns false if the payload is corrupt, or of another base.
inline bool changed_decode(const base_words& base, const uint8_t* in, uint64_t size, uint64_t count,
                           const changed_scratch& room, uint32_t* out) {
  const uint8_t* const end = in + size;
  class_list classes;
  in = classes.get(in, end);
  if (!in) return false;
  changed_class c[classes_max];
  uint64_t words = base.n, changed = count;
  uint32_t last = 0;
  for (uint32_t k = 0; k < classes.count; ++k) {
    c[k].words = words;
    c[k].changed = changed;
    if (k + 1 < classes.count && (!(in = get_varint(in, end, c[k].words)) || !(in = get_varint(in, end, c[k].changed))))
      return false;
    if (c[k].words > words || c[k].changed > changed || c[k].changed > c[k].words) return false;
    words -= c[k].words;
    changed -= c[k].changed;
    if (!c[k].changed) continue;
    uint64_t x;
    if (!(in = get_varint(in, end, x)) || (x & 3) == 3) return false;
    c[k].coder = static_cast<changed_coder>(x & 3);
    c[k].size = x >> 2;
    last = k;
  }
  if (words || changed) return false;
  const uint32_t* next[classes_max];
  uint32_t* to = classes.count == 1 ? out : room.ranks;
  for (uint32_t k = 0; k < classes.count; ++k) {
    next[k] = to;
    if (c[k].changed) {
      const auto left = static_cast<uint64_t>(end - in);
      if (k == last ? c[k].size != 0 : c[k].size == 0 || c[k].size > left) return false;
      const uint8_t* const behind = k == last ? end : in + c[k].size;
      if (!changed_get_class(c[k], in, behind, room, to)) return false;
      in = behind;
      to += c[k].changed;
    }
    if (classes.count > 1) *to++ = UINT32_MAX;
  }
  if (in != end) return false;
  if (classes.count == 1) return true;
  class_counts counts{};
  const auto walk = class_select.best();
  uint64_t found = 0;
  for (uint64_t first = 0; first < base.n; first += class_block) {
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(class_block, base.n - first));
    found += walk({base.word_size, base.words, first, n, &classes, &counts, next, count - found, out + found});
    if (found > count) return false;
  }
  for (uint32_t k = 0; k < classes.count; ++k)
    if (counts[k] != c[k].words) return false;
  return found == count;
}

}  // namespace dr
