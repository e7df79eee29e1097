// Which elements are kept: a magnitude and how many of those that equal it. Selecting is one thing, compacting
// another, so a tensor may be selected as a whole and compacted in segments.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

struct selection {
  uint32_t above;  // keeps every magnitude above it,
  uint64_t ties;   // and the first so many that equal it
  uint64_t kept;
};

// topr keeps min(d, max(1, floor(ratio·d + 1e-9))), or `count` if that is given.
uint64_t topr_target(double ratio, double count, uint64_t d);

// The `target` largest magnitudes of n values, never zeros; by radix: 11 + 10 + 10 bits, at most three reads.
selection select_largest(uint32_t dtype, const void* values, uint64_t n, uint64_t target);

// Magnitudes of at least `threshold` >= 0, never zeros. NaN ranks above infinity, so it is kept.
selection select_from(uint32_t dtype, const void* values, uint64_t n, double threshold);

// Positions of the kept among n values, from `first` on, below 2^32; `ties` goes down as they are taken.
uint64_t compact_selected(uint32_t dtype, const void* values, uint64_t n, selection& s, uint32_t* positions);

// Rows of `width` values that are not all zeros, of either sign: -0 is what a masked gradient has by the thousand.
uint64_t compact_rows(uint32_t dtype, const void* values, uint64_t rows, uint32_t width, uint32_t* positions);

}  // namespace dr
