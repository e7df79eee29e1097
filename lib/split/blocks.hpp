// Blocks of contiguous elements: block k of a universe begins at k · block. The last one may be short.
#pragma once

#include <cstdint>

namespace dr {

// The blocks of n elements that are whole blocks, ascending; returns how many.
uint64_t list_blocks(const uint32_t* elements, uint64_t n, uint32_t block, uint32_t* blocks);

// Elements of n blocks, ascending and below those of the universe.
inline uint64_t elements_of_blocks(const uint32_t* blocks, uint64_t n, uint32_t block, uint64_t universe) {
  const uint64_t elements = n * block;
  if (n == 0) return 0;
  const uint64_t end = (uint64_t{blocks[n - 1]} + 1) * block;
  return end > universe ? elements - (end - universe) : elements;
}

// The same elements, in place: `list` has room for them. Returns how many they are.
uint64_t expand_blocks(uint32_t* list, uint64_t n, uint32_t block, uint64_t universe);

}  // namespace dr
