// Selection of blocks: contiguous elements of a range, of the largest energy (codecs/sparsify/blocks/SPEC.md).
#pragma once

#include "sparsify/select.hpp"

namespace dr {

inline constexpr uint32_t block_sizes = 6;  // 1, 2, … 32

// Bytes of scratch for n values.
inline uint64_t keep_blocks_scratch(uint64_t n) { return 12 * n; }

// Of blocks of 2^k elements, targets[k] of them: the k whose largest blocks hold the most energy in a sample.
uint32_t choose_block(const select_source& source, const uint64_t* targets, void* scratch);

// Keeps the elements of the `target_blocks` blocks of the largest energy. block: 2^k up to 32.
kept_count keep_blocks(const select_source& source, uint64_t universe, uint32_t block, uint64_t target_blocks,
                       const select_memory& memory, const select_crew& crew, void* scratch);

}  // namespace dr
