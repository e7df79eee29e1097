// A whole payload of split Golomb blocks, whose blocks are coded by the CPU's instruction set.
#pragma once

#include "codecs/family/golomb/golomb_adaptive.hpp"
#include "primitive/cpu.hpp"

namespace dr {

uint8_t* golomb_put_avx2(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged);
uint8_t* golomb_put_avx512(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged);
uint8_t* golomb_put_neon(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged);
bool golomb_get_avx2(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                     bool flagged, uint32_t* x);
bool golomb_get_avx512(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                       bool flagged, uint32_t* x);
bool golomb_get_neon(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                     bool flagged, uint32_t* x);
inline constexpr cpu_table<decltype(&golomb_put_block)> golomb_put{golomb_put_block, on_x86(golomb_put_avx2),
                                                                   on_x86(golomb_put_avx512), on_arm(golomb_put_neon)};
inline constexpr cpu_table<decltype(&golomb_get_block)> golomb_get{golomb_get_block, on_x86(golomb_get_avx2),
                                                                   on_x86(golomb_get_avx512), on_arm(golomb_get_neon)};

// A payload: table of block ends and body sizes, bodies; of one block: a varint instead of the table, and a body.
struct golomb_payload {
  uint64_t n, universe;  // n >= 1 indices below the universe, which is below 2^32
  unsigned block_log2;
  divisor_rule rule;
  cpu_level level = cpu();

  static constexpr uint64_t part = 8, entry_size = 6;  // block_parts.hpp
  uint64_t block() const { return uint64_t{1} << block_log2; }
  uint64_t blocks() const { return ceil_div(n, block()); }
  size_t length(uint64_t b) const { return static_cast<size_t>(n - b * block() < block() ? n - b * block() : block()); }

  // Writes blocks [first, last) of x and their entries of the table. Returns the bodies' end. Cannot fail.
  uint8_t* put(const uint32_t* x, uint64_t first, uint64_t last, uint8_t* entries, uint8_t* body) const {
    const auto put_block = golomb_put.at(level);
    const bool alone = blocks() == 1;
    for (uint64_t b = first; b < last; ++b) {
      const uint32_t* const of_block = x + b * block();
      const size_t size = length(b);
      const uint64_t base = b ? uint64_t{of_block[-1]} + 1 : 0, end = uint64_t{of_block[size - 1]} + 1;
      uint8_t* const begin = alone ? put_varint(body, 2 * (universe - end)) : body;
      bool flagged = false;
      uint8_t* const behind = put_block(of_block, size, base, rule, begin, flagged);
      if (alone) {
        *body |= static_cast<uint8_t>(flagged);  // the varint's lowest bit, which makes it no longer
      } else {
        store(entries, static_cast<uint32_t>(end));
        store(entries + 4, static_cast<uint16_t>((behind - begin) | (flagged ? golomb_flag : 0)));
        entries += 6;
      }
      body = behind;
    }
    return body;
  }

  // Reads blocks [first, last) of a payload of `size` bytes. Returns false and sets *where (a byte of the payload) if
  // it is corrupt; else *where is the end of the last one's body.
  bool get(const uint8_t* in, size_t size, uint64_t first, uint64_t last, uint32_t* x, uint64_t* where) const {
    const auto get_block = golomb_get.at(level);
    const bool alone = blocks() == 1;
    uint64_t at = 6 * blocks(), lone = 0;
    *where = 0;
    if (alone) {
      const uint8_t* const behind = get_varint(in, in + size, lone);
      if (!behind || lone / 2 > universe) return false;
      at = static_cast<uint64_t>(behind - in);
    }
    if (at > size) return false;
    const auto end_of = [&](uint64_t b) { return alone ? universe - lone / 2 : load<uint32_t>(in + 6 * b); };
    const auto entry = [&](uint64_t b) -> uint64_t { return alone ? 0 : load<uint16_t>(in + 6 * b + 4); };
    for (uint64_t b = 0; b < first; ++b) at += entry(b) & (golomb_flag - 1u);
    uint64_t base = first ? end_of(first - 1) : 0;
    for (uint64_t b = first; b < last; ++b) {
      *where = 6 * b;
      const uint64_t end = end_of(b), of_block = entry(b);
      if (at > size) return false;
      const uint64_t body = alone ? size - at : of_block & (golomb_flag - 1u);
      const bool flagged = alone ? lone & 1 : of_block >> 15;
      // Positions in a body fit 32 bits.
      if (end > universe || end < base || end - base < length(b) || body > size - at || body >= golomb_flag)
        return false;
      if (flagged && !rule.adaptive && (!rule.may_cluster || rule.plain(end - base, length(b)) == 1)) return false;
      *where = at;
      if (!get_block(in + at, static_cast<size_t>(body), length(b), base, end, rule, flagged, x + b * block()))
        return false;
      at += body;
      base = end;
    }
    *where = at;
    return last < blocks() || at == size;
  }
};

// The whole at once, into golomb_bound bytes. Returns bytes written.
inline size_t golomb_encode(const golomb_payload& p, const uint32_t* x, uint8_t* out) {
  return static_cast<size_t>(p.put(x, 0, p.blocks(), out, out + (p.blocks() == 1 ? 0 : 6 * p.blocks())) - out);
}
// The size that encode would return. (It codes the bodies: sizes alone would take as long.)
inline uint64_t golomb_size(const golomb_payload& p, const uint32_t* x) {
  uint8_t body[golomb_flag + 16], entry[8];
  uint64_t size = p.blocks() == 1 ? 0 : 6 * p.blocks();
  for (uint64_t b = 0; b < p.blocks(); ++b) size += static_cast<uint64_t>(p.put(x, b, b + 1, entry, body) - body);
  return size;
}
inline bool golomb_decode(const golomb_payload& p, const uint8_t* in, size_t size, uint32_t* x, uint64_t* where) {
  return p.get(in, size, 0, p.blocks(), x, where);
}

}  // namespace dr
