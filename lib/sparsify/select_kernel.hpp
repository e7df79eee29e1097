// The loops of selection, for values of 32 and of 16 bits, for every instruction set. All write the same bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t select_run = 4096;  // values that are processed together
// Bytes that are compared before their selected values are collected. Measured with pages of 4 KiB on Zen 4: 2, 8 and
// 16 KiB, and any explicit prefetch, disturb the CPU's prefetchers (1.2 to 1.6 times the time at r/d = 1 %).
inline constexpr uint32_t select_chunk = 4096;
inline constexpr uint32_t select_spare = 64;  // elements that may be written past the end of the lists below

struct select_kernels {
  // Appends position (first + i) and bits of each of n <= select_run values whose magnitude is at least low >= 1.
  // Returns their number.
  uint32_t (*collect)(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions,
                      void* selected);
  // Appends the magnitudes in [low, high) of n values. Returns their number.
  uint64_t (*magnitudes)(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys);
  // Selects, in order, the values above `above` and the first `ties` that equal it, and subtracts these from `ties`.
  // Reads n pairs from index `from` on; writes to the beginning of `positions` and `selected`. Returns their number.
  uint64_t (*cut)(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* selected);
  // The number of magnitudes of at least low.
  uint64_t (*count)(const void* values, uint64_t n, uint32_t low);
  // The number of values that are not zeros; raises `largest` to the largest magnitude.
  uint64_t (*survey)(const void* values, uint64_t n, uint32_t& largest);
};

template <class Bits>
inline constexpr uint32_t select_magnitude = std::numeric_limits<std::make_signed_t<Bits>>::max();

// The loops in scalar code, which also end those of vectors. Each appends at `found`, and returns what there is then.
template <class Bits>
DR_EVERYWHERE uint32_t collect_each(const Bits* v, uint32_t i, uint32_t n, uint32_t low, uint32_t first, uint32_t found,
                                    uint32_t* positions, Bits* out) {
  for (; i < n; ++i) {
    const Bits x = v[i];
    positions[found] = first + i;
    out[found] = x;
    found += (x & select_magnitude<Bits>) >= low;
  }
  return found;
}
template <class Bits>
DR_EVERYWHERE uint64_t magnitudes_each(const Bits* v, uint64_t i, uint64_t n, uint32_t low, uint32_t high,
                                       uint64_t found, uint32_t* keys) {
  for (; i < n; ++i) {
    const uint32_t key = v[i] & select_magnitude<Bits>;
    keys[found] = key;
    found += key - low < high - low;
  }
  return found;
}
template <class Bits>
DR_EVERYWHERE uint64_t cut_each(uint64_t i, uint64_t end, uint32_t above, uint64_t& ties, uint64_t found,
                                uint32_t* positions, Bits* out) {
  for (; i < end; ++i) {
    const uint32_t key = out[i] & select_magnitude<Bits>;
    const bool tie = key == above && ties != 0;
    ties -= tie;
    positions[found] = positions[i];
    out[found] = out[i];
    found += key > above || tie;
  }
  return found;
}
template <class Bits>
DR_EVERYWHERE uint64_t count_each(const Bits* v, uint64_t i, uint64_t n, uint32_t low, uint64_t found) {
  for (; i < n; ++i) found += (v[i] & select_magnitude<Bits>) >= low;
  return found;
}

// `collect` by chunks, of which `chunk` is the loop.
template <class Bits, auto chunk>
DR_EVERYWHERE uint32_t collect_chunks(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions,
                                      void* selected) {
  constexpr uint32_t most = select_chunk / sizeof(Bits);
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; i += most)
    found += chunk(static_cast<const Bits*>(values) + i, n - i < most ? n - i : most, low, first + i, positions + found,
                   static_cast<Bits*>(selected) + found);
  return found;
}
// Lists the masks of eight that are not empty: a branch on every mask would be mispredicted. Returns their number.
DR_EVERYWHERE uint32_t list_masks(const uint8_t* masks, uint32_t n, uint16_t* list) {
  uint32_t some = 0;
  for (uint32_t i = 0; i < n; ++i) {
    list[some] = static_cast<uint16_t>(i);
    some += masks[i] != 0;
  }
  return some;
}

// `survey` in scalar code, which the vector versions inline: memory limits the compiler's vectors, too. Counters have
// the width of the values, so that a vector has the same number of both.
template <class Bits>
DR_EVERYWHERE uint64_t survey_with(const void* values, uint64_t n, uint32_t& largest) {
  using number = std::make_signed_t<Bits>;  // SSE2 compares no others
  constexpr auto magnitude = std::numeric_limits<number>::max();
  constexpr uint64_t counted_max = 16384;  // below 2^15, which a counter of 16 bits has room for
  const auto* v = static_cast<const Bits*>(values);
  auto top = static_cast<number>(largest);
  uint64_t nonzeros = 0;
  for (uint64_t i = 0; i < n; i += counted_max) {
    const uint64_t end = n - i < counted_max ? n : i + counted_max;
    number zeros = 0;
    for (uint64_t k = i; k < end; ++k) {
      const auto m = static_cast<number>(v[k] & magnitude);
      top = m > top ? m : top;
      zeros = static_cast<number>(zeros + (m == 0));
    }
    nonzeros += end - i - static_cast<uint64_t>(zeros);
  }
  largest = static_cast<uint32_t>(top);
  return nonzeros;
}

// [0]: of 32 bits, [1]: of 16.
extern const select_kernels select_scalar[2];
#if DR_X86
extern const select_kernels select_avx2[2], select_avx512[2];
#elif DR_NEON
extern const select_kernels select_neon[2];
#endif

inline const select_kernels& select_at(cpu_level level, uint32_t dtype) {
#if DR_X86
  static constexpr cpu_table<const select_kernels*> table{select_scalar, select_avx2, select_avx512};
#elif DR_NEON
  static constexpr cpu_table<const select_kernels*> table{select_scalar, nullptr, nullptr, select_neon};
#else
  static constexpr cpu_table<const select_kernels*> table{select_scalar};
#endif
  return table.at(level)[dtype != DR_F32];
}

}  // namespace dr
