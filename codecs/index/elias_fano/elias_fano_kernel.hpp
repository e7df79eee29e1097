// Low bits as they are, high bits in unary (Elias 1974, Fano 1971; layout: SPEC.md).
#pragma once

#include "codecs/family/ones/ones.hpp"
#include "primitive/packing.hpp"

namespace dr {

// l = ⌊log2(universe / n)⌋, 1 <= n <= universe < 2^32; so l <= 31.
constexpr unsigned elias_fano_low_bits(uint64_t universe, uint64_t n) { return bit_width(universe / n) - 1; }

// For n indices of which the last is `last`: the string of high bits ends with the last one.
constexpr uint64_t elias_fano_size(uint64_t universe, uint64_t n, uint64_t last) {
  const unsigned l = elias_fano_low_bits(universe, n);
  return packed_size(n, l) + ((last >> l) + n - 1) / 8 + 1;
}

// For at most n indices. Among counts with the same l the size grows with the count, so the largest per l is
// enough: ⌊universe / 2^l⌋, or n if it is smaller and has that l.
constexpr uint64_t elias_fano_bound(uint64_t universe, uint64_t n) {
  uint64_t largest = 0;
  for (unsigned l = 0; l < 32 && (universe >> l) > 0; ++l) {
    const uint64_t count = universe >> l < n ? universe >> l : n;
    if (elias_fano_low_bits(universe, count) != l) continue;
    const uint64_t size = elias_fano_size(universe, count, universe - 1);
    largest = size > largest ? size : largest;
  }
  return largest;
}

//   x [n] strictly ascending, < universe     out: elias_fano_bound bytes. Returns bytes written.
inline uint64_t elias_fano_encode(const uint32_t* x, uint64_t n, uint64_t universe, cpu_level level, uint8_t* out) {
  const unsigned l = elias_fano_low_bits(universe, n);
  const uint64_t size = elias_fano_size(universe, n, x[n - 1]), low_size = packed_size(n, l);
  const auto low_mask32 = static_cast<uint32_t>(low_mask(l));
  constexpr uint64_t block = 1024;  // a multiple of 8, so that blocks start on bytes
  uint32_t low[block];
  uint8_t* at = out;
  for (uint64_t i = 0; l && i < n; i += block) {
    const uint64_t m = n - i < block ? n - i : block;
    for (uint64_t k = 0; k < m; ++k) low[k] = x[i + k] & low_mask32;
    at = pack_bits.at(level)(low, m, l, at);
  }
  set_ones<true>.at(level)(x, n, l, out + low_size, size - low_size);
  return size;
}

// x[i] = x[i] << l | the i-th low number, for i in [begin, end), begin a multiple of 16; false if they do not strictly
// ascend.
inline bool join_low_scalar(const uint8_t* low, uint64_t low_size, unsigned l, uint64_t begin, uint64_t end,
                            uint32_t* x) {
  const uint64_t from = begin * l / 8;
  bit_reader reader(low + from, 8 * (low_size - from));
  bool ascends = true;
  for (uint64_t i = begin; i < end; ++i) {
    x[i] = static_cast<uint32_t>(uint64_t{x[i]} << l | reader.get(l));
    ascends &= i == 0 || x[i] > x[i - 1];
  }
  return ascends;
}

bool join_low_avx2(const uint8_t* low, uint64_t low_size, unsigned l, uint64_t begin, uint64_t end, uint32_t* x);
bool join_low_avx512(const uint8_t* low, uint64_t low_size, unsigned l, uint64_t begin, uint64_t end, uint32_t* x);

inline constexpr cpu_table<decltype(&join_low_scalar)> join_low{join_low_scalar, on_x86(join_low_avx2),
                                                                on_x86(join_low_avx512)};

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool elias_fano_decode(const uint8_t* in, uint64_t size, uint64_t n, uint64_t universe, cpu_level level,
                              uint32_t* x, uint64_t* where) {
  *where = 0;
  if (n == 0 || n > universe) return false;
  const unsigned l = elias_fano_low_bits(universe, n);
  const uint64_t low_bits = n * l, low_size = ceil_div(low_bits, 8);
  if (size <= low_size || !padding_is_zero(in, low_bits)) return false;
  const uint8_t* const high = in + low_size;
  const uint64_t high_size = size - low_size;
  *where = size - 1;
  if (high[high_size - 1] == 0 || count_ones.at(level)(high, high_size) != n) return false;
  // The last one has the largest high half; if it fits 32 bits, all others do.
  const uint64_t last = 8 * (high_size - 1) + bit_width(high[high_size - 1]) - 1 - (n - 1);
  if (last > (universe - 1) >> l) return false;
  *where = 0;
  constexpr uint64_t step = 512;  // bytes of high halves: at most 4096 indices wait in the cache for their low bits
  uint64_t found = 0, joined = 0;
  for (uint64_t at = 0; at < high_size; at += step) {
    const uint64_t end = at + step < high_size ? at + step : high_size;
    found = list_ones<true>.at(level)(high, at, end, found, n, x);
    const uint64_t ready = end == high_size ? n : found / 16 * 16;
    if (ready > joined && !join_low.at(level)(in, low_size, l, joined, ready, x)) return false;
    joined = ready > joined ? ready : joined;
  }
  return x[n - 1] < universe;
}

}  // namespace dr
