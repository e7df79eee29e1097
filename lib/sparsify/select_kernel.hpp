// The loops of selection, for values of 32 and of 16 bits, for every instruction set. All write the same.
#pragma once

#include <cstdint>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t select_run = 4096;  // values that are looked at together
// Bytes that are compared before their finds are collected. Measured with a page of 4 KiB on Zen 4: with 2, 8
// and 16 KiB, and with any prefetch of our own, the CPU's prefetching is disturbed (1.2 to 1.6 times the time at r/d =
// 1 %).
inline constexpr uint32_t select_chunk = 4096;
inline constexpr uint32_t select_spare = 64;  // elements that may be written behind the last one of any list below

struct select_kernels {
  // Appends position (first + i) and bits of each of n <= select_run values whose magnitude is at least low >= 1.
  // Returns how many.
  uint32_t (*collect)(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, void* kept);
  // Appends the magnitudes in [low, high) of n values. Returns how many.
  uint64_t (*magnitudes)(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys);
  // Leaves, in their order, values above `above` and the first `ties` that equal it; ties goes down as they are taken.
  // From n pairs at `from` to where `positions` and `kept` begin, which is not behind them. Returns how many.
  uint64_t (*cut)(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* kept);
  // How many magnitudes are at least low.
  uint64_t (*count)(const void* values, uint64_t n, uint32_t low);
};

// [0]: of 32 bits, [1]: of 16.
extern const select_kernels select_scalar[2];
#if DR_X86
extern const select_kernels select_avx2[2], select_avx512[2];
#endif

inline const select_kernels& select_at(cpu_level level, uint32_t dtype) {
#if DR_X86
  static constexpr cpu_table<const select_kernels*> table{select_scalar, select_avx2, select_avx512};
#else
  static constexpr cpu_table<const select_kernels*> table{select_scalar};
#endif
  return table.at(level)[dtype != DR_F32];
}

}  // namespace dr
