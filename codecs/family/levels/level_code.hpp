// What a block of levels is coded by: the divisor of its Golomb code, and the bounds (layout:
// codecs/value/uniform_quant/SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"

namespace dr {

inline constexpr size_t level_block = 4096;
inline constexpr uint32_t level_divisor_max = 4096, level_max = 65535;
// Of a body: 12 bits of v and extra, a one, and at most level_max / M zeros, where M is level_divisor_max or near 0.69
// of the mean: in both cases below 17. Twice the bytes of n uncompressed levels.
inline constexpr size_t level_body_max = 16384;
// Bytes that kernels may read past a body, and write past the requested output.
inline constexpr size_t level_slack = 64;

struct level_code {
  uint32_t divisor;    // M, 1 … level_divisor_max
  unsigned low_bits;   // k: bits of v
  uint32_t short_low;  // s: remainders below it have no extra bit

  DR_HD static constexpr level_code of(uint32_t divisor) {
    const unsigned c = ceil_log2(divisor);
    return {divisor, c ? c - 1 : 0, (1u << c) - divisor};
  }
  DR_HD constexpr uint32_t bits(uint32_t level) const {
    const uint32_t q = level / divisor, r = level - q * divisor;
    return low_bits + q + 1 + (divisor > 1 && r >= short_low);
  }
};

// M that suits n levels of this sum, if they are nearly geometric: 0.693 · mean + 0.847, rounded down (that of
// golomb.hpp).
DR_HD constexpr uint32_t level_divisor(uint64_t sum, uint64_t n) {
  const uint64_t m = ((2 * sum + n) * 22713 + n * 32768) / (n * 65536);
  return m > level_divisor_max ? level_divisor_max : m ? static_cast<uint32_t>(m) : 1;
}

inline constexpr uint32_t raw_block = 0;
inline constexpr uint32_t level_code_max = 2 * level_divisor_max + 1;
static_assert(level_divisor_max == level_block);  // no more units than levels

DR_HD constexpr uint64_t level_blocks(uint64_t n) { return ceil_div(n, level_block); }
DR_HD constexpr uint64_t level_table_bound(uint64_t n) { return level_blocks(n) > 1 ? 4 * level_blocks(n) : 2; }

DR_HD constexpr level_code runs_code(size_t n, size_t units) { return level_code::of(level_divisor(n, units)); }

}  // namespace dr
