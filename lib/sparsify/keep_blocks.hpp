// Selection of blocks, contiguous elements of a range, by their energy (codecs/sparsify/blocks/SPEC.md).
#pragma once

#include "sparsify/select.hpp"

namespace dr {

// Bytes of scratch for blocks of `universe` elements, of which `target_blocks` are wanted. However the universe is cut
// into ranges: each may have a short block, so there may be as many blocks as elements.
uint64_t keep_blocks_scratch(uint64_t universe, uint32_t block, uint64_t target_blocks);

// Keeps the elements of the `target_blocks` blocks of the largest energy; of all blocks, if so many have `universe`
// elements or more. Those of energy 0 are never kept; of equal energies those of lower index. block: a power of two up
// to 32.
kept_count keep_blocks(const select_source& source, uint64_t universe, uint32_t block, uint64_t target_blocks,
                       const select_memory& memory, const select_crew& crew, void* scratch);

}  // namespace dr
