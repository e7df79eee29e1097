// Gaps of 128 indices at a time, as wide as the widest of them (Lemire, Boytsov 2015, "binary packing"; layout:
// SPEC.md).
#pragma once

#include "codecs/family/gaps/gaps.hpp"

namespace dr {

constexpr uint64_t delta_bitpack_bound(uint64_t universe, uint64_t count_max) {
  return packed_gaps_bound(universe, count_max);
}

inline uint64_t delta_bitpack_size(const uint32_t* x, uint64_t n, cpu_level level) {
  uint64_t size = ceil_div(n, gap_block);
  each_gap_block(x, n, level,
                 [&](uint64_t, size_t m, const uint32_t*, unsigned bits) { size += packed_size(m, bits); });
  return size;
}

//   x [n] strictly ascending     out: delta_bitpack_bound bytes. Returns bytes written.
inline uint64_t delta_bitpack_encode(const uint32_t* x, uint64_t n, cpu_level level, uint8_t* out) {
  const auto pack_at = pack_bits.at(level);
  uint8_t* body = out + ceil_div(n, gap_block);
  each_gap_block(x, n, level, [&](uint64_t i, size_t m, const uint32_t* gaps, unsigned bits) {
    out[i / gap_block] = static_cast<uint8_t>(bits);
    body = pack_at(gaps, m, bits, body);
  });
  return static_cast<uint64_t>(body - out);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool delta_bitpack_decode(const uint8_t* in, uint64_t size, uint64_t n, uint64_t universe, cpu_level level,
                                 uint32_t* x, uint64_t* where) {
  const auto ungap_at = ungap.at(level);
  uint64_t at = ceil_div(n, gap_block), next = 0;
  *where = 0;
  if (at > size) return false;
  for (uint64_t i = 0; i < n; i += gap_block) {
    *where = i / gap_block;
    const size_t m = static_cast<size_t>(n - i < gap_block ? n - i : gap_block);
    const unsigned bits = in[*where];
    const uint64_t body = packed_size(m, bits);
    if (bits > 32 || body > size - at) return false;
    *where = at;
    if (!padding_is_zero(in + at, uint64_t{m} * bits)) return false;
    uint32_t all = 0;
    next = ungap_at(in + at, in + size, m, bits, next, x + i, all);
    if (next > index_end(universe) || bit_width(all) != bits) return false;
    at += body;
  }
  *where = at;
  return at == size;
}

}  // namespace dr
