// The check of a base and of its patched result: the frame's check over the bytes of a segment, stored as one sum per
// chunk, so that a patch updates it without reading the segment again (FORMAT.md, Patches).
#pragma once

#include <cstdint>

#include "primitive/check.hpp"

namespace dr {

inline constexpr uint64_t base_chunk = 4 * check_chunk_words;  // bytes
constexpr uint64_t base_chunks(uint64_t bytes) { return ceil_div(bytes, base_chunk); }

// The sums of the chunks of `bytes` bytes, whose last word is padded with zeros. sums [base_chunks(bytes)]
void base_sums(const void* from, uint64_t bytes, uint64_t* sums);
// The check that follows from the sums.
uint64_t fold_sums(const uint64_t* sums, uint64_t chunks);

// Updates sums for changed words of `size` bytes. Rows of `width` words at positions [n]; nullptr: rows 0 to n - 1.
void move_sums(uint64_t* sums, uint32_t size, uint32_t width, const uint32_t* positions, uint64_t n, const void* old,
               const void* now);

}  // namespace dr
