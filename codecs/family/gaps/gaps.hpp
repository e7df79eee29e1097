// Gaps between ascending indices, in blocks of 128, and indices from packed gaps: shared by delta_bitpack and
// delta_pfor.
#pragma once

#include "primitive/packing.hpp"

namespace dr {

inline constexpr uint64_t gap_block = 128;

// The largest end of the indices: 2^32, for any universe of the caller.
constexpr uint64_t index_end(uint64_t universe) { return universe >> 32 ? uint64_t{1} << 32 : universe; }

// A block of gaps with at most this width spans less than 2^32: lanes of 32 bits do not overflow.
inline constexpr unsigned narrow_gap_bits = 24;

// The widest gap needs at most bit_width(universe - 1) bits, and of at most `universe` all gaps together: a block whose
// gaps need k bits spans at least 2^(k-1), so blocks of k bits or more are at most universe / 2^(k-1).
// Bound of packing blocks at the width of their widest gaps, with a byte per block.
constexpr uint64_t packed_gaps_bound(uint64_t universe, uint64_t count_max) {
  const uint64_t blocks = ceil_div(count_max, gap_block);
  uint64_t bits = 0;  // bits per index of a block, summed over blocks
  for (unsigned k = 1; k <= 32; ++k) {
    const uint64_t as_wide = universe >> (k - 1);
    bits += as_wide < blocks ? as_wide : blocks;
  }
  return blocks + ceil_div(bits * (count_max < gap_block ? count_max : gap_block), 8);
}

// Gaps of n ascending indices whose predecessor is next - 1; returns the bits of the widest.
inline unsigned gaps_scalar(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps) {
  uint32_t all = 0;
  for (size_t i = 0; i < n; ++i) {
    gaps[i] = static_cast<uint32_t>(x[i] - next);
    all |= gaps[i];
    next = uint64_t{x[i]} + 1;
  }
  return bit_width(all);
}

// x[i] of n from their packed gaps; returns the index after the last, at least 2^32 if an index does not fit 32 bits.
// Into `all` go the gaps' bits.
inline uint64_t ungap_scalar(const uint8_t* in, const uint8_t*, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                             uint32_t& all) {
  bit_reader reader(in, n * bits);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t gap = reader.get(bits);
    all |= static_cast<uint32_t>(gap);
    next += gap;
    x[i] = static_cast<uint32_t>(next++);
  }
  return next;
}

unsigned gaps_avx2(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps);
uint64_t ungap_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                    uint32_t& all);
uint64_t ungap_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                      uint32_t& all);

unsigned gaps_neon(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps);
uint64_t ungap_neon(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                    uint32_t& all);

inline constexpr cpu_table<decltype(&gaps_scalar)> gaps_of{gaps_scalar, on_x86(gaps_avx2), nullptr, on_arm(gaps_neon)};
inline constexpr cpu_table<decltype(&ungap_scalar)> ungap{ungap_scalar, on_x86(ungap_avx2), on_x86(ungap_avx512),
                                                          on_arm(ungap_neon)};

// Calls visit(first, n, gaps, bits) per block.
template <class F>
void each_gap_block(const uint32_t* x, uint64_t n, cpu_level level, F&& visit) {
  const auto gaps_at = gaps_of.at(level);
  uint32_t gaps[gap_block];
  uint64_t next = 0;
  for (uint64_t i = 0; i < n; i += gap_block) {
    const size_t m = static_cast<size_t>(n - i < gap_block ? n - i : gap_block);
    const unsigned bits = gaps_at(x + i, m, next, gaps);
    visit(i, m, gaps, bits);
    next = uint64_t{x[i + m - 1]} + 1;
  }
}

}  // namespace dr
