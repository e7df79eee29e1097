// Blocks of contiguous elements: block k of a universe begins at k · block. The last one may be short.
#pragma once

#include <cstdint>

namespace dr {

// Lists the blocks of n ascending elements that form whole blocks; returns their number.
uint64_t list_blocks(const uint32_t* elements, uint64_t n, uint32_t block, uint32_t* blocks);

// The number of elements of n blocks, ascending and below the number of blocks of the universe.
inline uint64_t elements_of_blocks(const uint32_t* blocks, uint64_t n, uint32_t block, uint64_t universe) {
  const uint64_t elements = n * block;
  if (n == 0) return 0;
  const uint64_t end = (uint64_t{blocks[n - 1]} + 1) * block;
  return end > universe ? elements - (end - universe) : elements;
}

// Replaces blocks by their elements, in place: `list` has space for them. Returns their number.
uint64_t expand_blocks(uint32_t* list, uint64_t n, uint32_t block, uint64_t universe);

}  // namespace dr
