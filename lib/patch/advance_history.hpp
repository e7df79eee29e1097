// Updates the history of weights (primitive/change_history.hpp) by a patch.
#pragma once

#include <cstdint>

namespace dr {

// Advances the history of `rows` rows of `width` words of a type by one patch. Rows at positions [n] were `old` and are
// `now`; nullptr: rows 0 to n - 1.
void advance_history(uint8_t* history, uint64_t rows, uint32_t dtype, uint32_t width, const uint32_t* positions,
                     uint64_t n, const void* old, const void* now);

// Copies the history of rows at ascending positions.
void gather_history(const uint8_t* history, uint32_t width, const uint32_t* positions, uint64_t n, uint8_t* to);

}  // namespace dr
