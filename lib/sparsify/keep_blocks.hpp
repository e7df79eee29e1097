// Selection of blocks, contiguous elements of a range, by their energy (codecs/sparsify/blocks/SPEC.md).
#pragma once

#include "sparsify/select.hpp"

namespace dr {

// Bytes of scratch to select `target_blocks` blocks of `universe` elements, cut into ranges in any way: every range may
// have a short block, so there may be as many blocks as elements.
uint64_t keep_blocks_scratch(uint64_t universe, uint32_t block, uint64_t target_blocks);

// Selects the elements of the `target_blocks` blocks of the largest energy; all blocks, if so many have `universe`
// elements or more. Blocks of energy 0 are never selected; of equal energies the lower index goes first. block: a power
// of two up to 32.
selection_result keep_blocks(const select_source& source, uint64_t universe, uint32_t block, uint64_t target_blocks,
                             const select_memory& memory, const select_crew& crew, void* scratch);

}  // namespace dr
