// The words of a base and of what it becomes on a GPU, and the sums of their chunks (FORMAT.md, Patches).
#pragma once

#include <cstdint>

#include "primitive/atomics.hpp"
#include "primitive/bits.hpp"
#include "primitive/check.hpp"

namespace dr {

inline constexpr unsigned patch_lanes = 256;
inline constexpr uint32_t chunk_size_bytes = 4 * check_chunk_words;
// A lane has the same place in every chunk, so it computes its factors once.
static_assert(chunk_size_bytes == sizeof(four_words) * patch_lanes);
inline constexpr uint32_t chunks_together = 4;  // of a block, at most

// The values of a tensor, of 2 or 4 bytes each.
struct word_run {
  const uint8_t* from;
  uint64_t bytes;
  uint32_t size;
  bool wide;  // its vectors are aligned

  DR_HD static word_run of(const void* from, uint64_t values, uint32_t size) {
    return {static_cast<const uint8_t*>(from), values * size, size, aligned_to_four(from)};
  }
  // 16 bytes from byte `at` on, a multiple of 16; zeros past the end.
  DR_HD four_words vector(uint64_t at) const {
    if (wide && at + sizeof(four_words) <= bytes) return *reinterpret_cast<const four_words*>(from + at);
    four_words x{};
#pragma unroll
    for (uint32_t q = 0; q < 4; ++q) x.of[q] = word(at + 4 * q);
    return x;
  }
  // The bits of a value.
  DR_HD uint32_t value(uint64_t i) const {
    return size == 4 ? reinterpret_cast<const uint32_t*>(from)[i] : reinterpret_cast<const uint16_t*>(from)[i];
  }

 private:
  DR_HD uint32_t word(uint64_t at) const {
    if (at + size > bytes) return 0;
    if (size == 4) return *reinterpret_cast<const uint32_t*>(from + at);
    const uint32_t low = *reinterpret_cast<const uint16_t*>(from + at);
    return at + 4 > bytes ? low : low | uint32_t{*reinterpret_cast<const uint16_t*>(from + at + 2)} << 16;
  }
};

// The sums of consecutive chunks: of the base, and how far they move by what changes.
struct chunk_sums {
  uint64_t base[chunks_together], moved[chunks_together];

  DR_HD friend chunk_sums operator+(const chunk_sums& a, const chunk_sums& b) {
    chunk_sums sum;
#pragma unroll
    for (uint32_t k = 0; k < chunks_together; ++k) {
      sum.base[k] = a.base[k] + b.base[k];
      sum.moved[k] = a.moved[k] + b.moved[k];
    }
    return sum;
  }

  // Adds a lane's part of chunk k, of which `words` words are there.
  DR_HD void add(uint32_t k, const four_words& old, const uint32_t* factor, uint32_t lane, uint64_t words) {
#pragma unroll
    for (uint32_t q = 0; q < 4; ++q)
      if (4 * lane + q < words) base[k] += (uint64_t{old.of[q]} + 1) * factor[q];
  }
  DR_HD void move(uint32_t k, const four_words& old, const four_words& now, const uint32_t* factor) {
#pragma unroll
    for (uint32_t q = 0; q < 4; ++q)
      if (old.of[q] != now.of[q]) moved[k] += (uint64_t{now.of[q]} - uint64_t{old.of[q]}) * factor[q];
  }
  // A value of 2 or 4 bytes at byte `at` of these chunks.
  DR_HD void move(uint32_t at, uint32_t old, uint32_t now) {
    const uint64_t by =
        (uint64_t{now} - uint64_t{old}) * (uint64_t{check_factor(at % chunk_size_bytes / 4)} << 8 * (at % 4));
#pragma unroll
    for (uint32_t k = 0; k < chunks_together; ++k)  // (an index would need local memory)
      if (k == at / chunk_size_bytes) moved[k] += by;
  }

  // Adds the terms of the chunks from byte `begin` on, of `bytes` bytes, to the checks of base and result. One lane.
  DR_HD void tell(uint64_t begin, uint64_t bytes, uint64_t* checks) const {
    uint64_t before = 0, after = 0;
#pragma unroll
    for (uint32_t k = 0; k < chunks_together; ++k) {
      if (begin + uint64_t{k} * chunk_size_bytes >= bytes) continue;
      const uint64_t offset = (begin / chunk_size_bytes + k) * golden;
      before += mix64(base[k] + offset);
      after += mix64(base[k] + moved[k] + offset);
    }
    atomic_add(checks, before);
    atomic_add(checks + 1, after);
  }
};

DR_HD inline void set_factors(uint32_t lane, uint32_t* factor) {
#pragma unroll
  for (uint32_t q = 0; q < 4; ++q) factor[q] = check_factor(4 * lane + q);
}
// Words of the chunk at byte `begin` of `bytes` bytes.
DR_HD inline uint64_t words_of_chunk(uint64_t begin, uint64_t bytes) {
  return begin < bytes ? (bytes - begin + 3) / 4 : 0;
}

}  // namespace dr
