// The block size that selects the most energy (codecs/sparsify/blocks/SPEC.md).
#pragma once

#include "sparsify/select.hpp"

namespace dr {

inline constexpr uint32_t block_choices = 6;  // 1, 2, 4, …, 32

// The number of blocks of `block` elements that cost no more bits than `count` single elements of d, at `value_bits`
// per value: the largest m of B blocks with log2 C(B, m) + value_bits·block·m <= log2 C(d, count) + value_bits·count,
// log2 C by entropy.
uint64_t blocks_worth(uint64_t d, uint64_t count, double value_bits, uint32_t block);

// The size whose targets[log2 size] blocks have the most energy, by a sample; on a tie the smaller one.
// scratch: block_size_scratch bytes. ends [ranges]: used.
uint32_t choose_block(const select_source& source, uint64_t universe, const uint64_t* targets, const select_crew& crew,
                      uint64_t* ends, void* scratch);
uint64_t block_size_scratch(uint64_t universe);

}  // namespace dr
