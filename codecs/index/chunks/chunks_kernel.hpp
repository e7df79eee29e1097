// Gaps within chunks of contiguous elements whose number of indices is known (SPEC.md).
#pragma once

#include <array>
#include <cstdint>

#include "primitive/bits.hpp"

namespace dr {

inline constexpr uint64_t chunk_elements_max = 32768;

struct chunk_shape {
  uint64_t universe, size;

  constexpr uint64_t chunks() const { return ceil_div(universe, size); }
  constexpr uint64_t elements(uint64_t chunk) const {
    return universe - chunk * size < size ? universe - chunk * size : size;
  }
  // Indices of a chunk of n elements, if a whole one has c.
  constexpr uint64_t usual(uint64_t c, uint64_t n) const {
    return n == size || c == 0 ? c : c * n < size ? 1 : c * n / size;
  }
};

// c and the number of named chunks have up to 3 and 5 bytes, an index 39 bits; the appender writes 8 bytes beyond its end. Of
// more than 2n + 1 chunks the majority is empty, and then c is 0 and n are named at most. A named chunk has two bytes, and
// more where the distances between chunks, which add up to `chunks`, or the counts, which add up to n, reach 128.
constexpr uint64_t index_chunks_bound(chunk_shape shape, uint64_t n) {
  const uint64_t chunks = shape.chunks(), named = chunks < 2 * n + 1 ? chunks : 2 * n + 1;
  const uint64_t longer = chunks / 127 < 4 * named ? chunks / 127 : 4 * named;
  return 16 + 2 * named + longer + n / 127 + 5 * n;
}

namespace chunk_code {

inline constexpr unsigned quotient_max = 24, gap_bits = 15;

// ln 2 / 2 by the indices left and one more.
constexpr uint32_t part_of(uint64_t r) { return (uint32_t{22713} << 16) / static_cast<uint32_t>(r + 1); }
inline constexpr auto parts = [] {  // of those that are common
  std::array<uint32_t, 256> made{};
  for (uint64_t r = 0; r < made.size(); ++r) made[r] = part_of(r);
  return made;
}();

// The divisor of a gap, with m elements and r indices left, r < m.
inline uint64_t divisor(uint64_t m, uint64_t r) {
  if (r == 1) return m;
  const uint64_t part = r < parts.size() ? parts[r] : part_of(r);
  const uint64_t d = ((2 * (m - r) + r + 1) * part + (uint64_t{1} << 31)) >> 32;
  return d ? d : 1;
}

struct word {
  uint64_t code;
  unsigned bits;
};

inline word word_of(uint64_t m, uint64_t r, uint64_t gap) {
  const uint64_t by = divisor(m, r);
  word w{0, 0};
  uint64_t x = gap;
  if (r > 1) {
    const uint64_t q = static_cast<uint32_t>(gap) / static_cast<uint32_t>(by);
    if (q >= quotient_max) return {gap << quotient_max, quotient_max + gap_bits};
    x = gap - q * by;
    w = {uint64_t{1} << q, static_cast<unsigned>(q) + 1};
  }
  if (by == 1) return w;
  const unsigned width = ceil_log2(by);
  // (Whether x is below t nobody predicts: no branch.)
  const uint64_t t = (uint64_t{1} << width) - by, y = x + t, more = x >= t;
  const uint64_t v = (x & (more - 1)) | ((y >> 1) & -more);
  return {w.code | (v | (y & more) << (width - 1)) << w.bits, w.bits + width - 1 + static_cast<unsigned>(more)};
}

// A string of bits; behind its end are zeros.
struct bits_in {
  const uint8_t* in;
  uint64_t size, at = 0;  // bytes, bits

  uint64_t peek() const {  // at least 57 bits
    const uint64_t byte = at / 8;
    const uint64_t word = byte + 8 <= size ? load<uint64_t>(in + byte)
                          : byte < size    ? load_bytes(in + byte, static_cast<unsigned>(size - byte))
                                           : 0;
    return word >> at % 8;
  }
};

// The gap, or one above m - r if the bits are wrong.
inline uint64_t get(bits_in& in, uint64_t m, uint64_t r) {
  const uint64_t by = divisor(m, r);
  uint64_t word = in.peek(), q = 0;
  unsigned used = 0;
  if (r > 1) {
    q = countr_zero(word | uint64_t{1} << quotient_max);
    if (q == quotient_max) {
      in.at += quotient_max + gap_bits;
      const uint64_t gap = word >> quotient_max & low_mask(gap_bits);
      return gap >= quotient_max * by ? gap : m;
    }
    used = static_cast<unsigned>(q) + 1;
    word >>= used;
  }
  uint64_t x = 0;
  if (by > 1) {
    const unsigned width = ceil_log2(by);
    const uint64_t t = (uint64_t{1} << width) - by, v = word & low_mask(width - 1);
    const uint64_t more = v >= t;
    x = v + ((v + (word >> (width - 1) & 1) - t) & -more);
    used += width - 1 + static_cast<unsigned>(more);
  }
  in.at += used;
  return q * by + x;
}

}  // namespace chunk_code

// Calls f(chunk, first, k) for chunks in order, all of them or those that have indices: x[first … first + k).
template <class F>
void each_chunk(const uint32_t* x, uint64_t n, chunk_shape shape, bool all, F&& f) {
  const uint64_t chunks = shape.chunks();
  for (uint64_t chunk = 0, i = 0; chunk < chunks; ++chunk) {
    if (!all && i == n) return;
    if (!all) chunk = x[i] / shape.size;
    const uint64_t first = i, end = (chunk + 1) * shape.size;
    while (i < n && x[i] < end) ++i;
    f(chunk, first, i - first);
  }
}

// The numbers of the head, number(x), and the words, word(w). x [n] strictly ascending, < universe.
template <class Number, class Word>
void each_chunk_part(const uint32_t* x, uint64_t n, chunk_shape shape, Number&& number, Word&& word) {
  if (shape.chunks() > 1) {
    uint64_t c = 0, votes = 0, there = 0, named = 0, behind = 0;
    each_chunk(x, n, shape, false, [&](uint64_t chunk, uint64_t, uint64_t k) {
      if (shape.elements(chunk) < shape.size) return;
      ++there;
      if (votes == 0) c = k;
      votes = k == c ? votes + 1 : votes - 1;
    });
    if (2 * there <= shape.universe / shape.size) c = 0;
    const auto is_named = [&](uint64_t chunk, uint64_t k) { return k != shape.usual(c, shape.elements(chunk)); };
    each_chunk(x, n, shape, c > 0, [&](uint64_t chunk, uint64_t, uint64_t k) { named += is_named(chunk, k); });
    number(c);
    number(named);
    if (named)
      each_chunk(x, n, shape, c > 0, [&](uint64_t chunk, uint64_t, uint64_t k) {
        if (!is_named(chunk, k)) return;
        number(chunk - behind);
        number(k);
        behind = chunk + 1;
      });
  }
  each_chunk(x, n, shape, false, [&](uint64_t chunk, uint64_t first, uint64_t k) {
    uint64_t left = shape.elements(chunk), next = chunk * shape.size;
    for (uint64_t i = first, r = k; r > 0 && r < left; ++i, --r) {
      const uint64_t gap = x[i] - next;
      word(chunk_code::word_of(left, r, gap));
      next += gap + 1;
      left -= gap + 1;
    }
  });
}

//   out: index_chunks_bound bytes. Returns bytes written.
inline uint64_t index_chunks_encode(const uint32_t* x, uint64_t n, chunk_shape shape, uint8_t* out) {
  bit_appender bits{out};
  each_chunk_part(
      x, n, shape, [&](uint64_t number) { bits.out = put_varint(bits.out, number); },
      [&](chunk_code::word w) { bits.put(w.code, w.bits); });
  return static_cast<uint64_t>(bits.finish() - out);
}

inline uint64_t index_chunks_size(const uint32_t* x, uint64_t n, chunk_shape shape) {
  uint64_t head = 0, bits = 0;
  each_chunk_part(
      x, n, shape, [&](uint64_t number) { head += number ? (bit_width(number) + 6) / 7 : 1; },
      [&](chunk_code::word w) { bits += w.bits; });
  return head + ceil_div(bits, 8);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool index_chunks_decode(const uint8_t* in, uint64_t size, uint64_t n, chunk_shape shape, uint32_t* x,
                                uint64_t* where) {
  const uint8_t *const end = in + size, *at = in;
  const uint64_t chunks = shape.chunks();
  uint64_t c = 0, named = 0;
  *where = 0;
  if (n > shape.universe) return false;
  if (chunks > 1) {
    if (!(at = get_varint(at, end, c)) || c > shape.size) return false;
    if (!(at = get_varint(at, end, named)) || named > chunks) return false;
  }
  // First the counts: a chunk without indices takes no time, and all others are paid for by theirs.
  const uint8_t* const names = at;
  const uint64_t last = shape.elements(chunks - 1);
  uint64_t behind = 0, others = 0, usual = chunks * c;
  if (last < shape.size) usual += shape.usual(c, last) - c;
  if (chunks == 1) usual = n;
  for (uint64_t i = 0; i < named; ++i) {
    uint64_t between = 0, k = 0;
    *where = static_cast<uint64_t>(at - in);
    const uint8_t* const next = get_varint(at, end, between);
    if (!next || between >= chunks - behind || !(at = get_varint(next, end, k))) return false;
    behind += between;
    const uint64_t elements = shape.elements(behind), expected = shape.usual(c, elements);
    if (k > elements || k == expected) return false;
    usual -= expected;
    others += k;
    ++behind;
  }
  if (usual + others != n) return false;

  chunk_code::bits_in bits{at, static_cast<uint64_t>(end - at)};
  const uint32_t* const all = x + n;
  const auto one = [&](uint64_t chunk, uint64_t k) {
    uint64_t left = shape.elements(chunk), r = k;
    auto next = static_cast<uint32_t>(chunk * shape.size);
    if (r > left || r > static_cast<uint64_t>(all - x)) return false;
    for (; r > 0 && r < left; --r) {
      const uint64_t gap = chunk_code::get(bits, left, r);
      if (gap > left - r) return false;
      next += static_cast<uint32_t>(gap);
      *x++ = next++;
      left -= gap + 1;
    }
    for (; r > 0; --r) *x++ = next++;
    return true;
  };
  uint64_t chunk = 0;
  const auto up_to = [&](uint64_t stop) {
    if (c == 0) chunk = stop;
    for (; chunk < stop; ++chunk)
      if (!one(chunk, shape.usual(c, shape.elements(chunk)))) return false;
    return true;
  };
  bool sound = chunks > 1 || one(chunk++, n);
  // The names again, and as little trusted: the bytes may have changed.
  const uint8_t* name = names;
  for (uint64_t i = 0; sound && i < named; ++i) {
    uint64_t between = 0, k = 0;
    name = get_varint(name, end, between);
    name = name ? get_varint(name, end, k) : nullptr;
    sound = name && between < chunks - chunk && up_to(chunk + between) && one(chunk, k);
    ++chunk;
  }
  sound = sound && up_to(chunks) && x == all;
  *where = static_cast<uint64_t>(at - in) + bits.at / 8;
  return sound && ceil_div(bits.at, 8) == bits.size && padding_is_zero(bits.in, bits.at);
}

}  // namespace dr
