// Positions by chance (SPEC.md).
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "sparsify/select.hpp"

namespace dr {

// Bits of d positions.
constexpr uint64_t random_words(uint64_t d) { return ceil_div(d, 64); }

// Sets `target` of d bits: those at ⌊draw(key, i) · d / 2^64⌋ for i = 0, 1, … until `target` are set; if target is
// more than d / 2, all but d − target that are drawn so. (Bias: d / 2^64.)
void choose_random(uint64_t key, uint64_t d, uint64_t target, uint64_t* chosen);

// Selects the drawn positions. The source has all values in order; or, if `indices` are given, those
// of these positions, ascending. Returns how many.
uint64_t keep_chosen(const select_source& source, const uint64_t* indices, const uint64_t* chosen,
                     const select_memory& memory, const select_crew& crew);

}  // namespace dr
