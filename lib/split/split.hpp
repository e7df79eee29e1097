// From a gradient to its two streams: sorts sparse input, gathers values at a support.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// An index and where its row of values stands.
struct sparse_entry {
  uint64_t index, position;
};

// Reads n indices of a framework's type into ascending entries. ARGUMENT: one is negative or not below universe, or
// (unless they are to be summed) comes twice. Stable: equal indices stay in input order.
dr_status sort_indices(uint32_t index_dtype, const void* indices, uint64_t n, uint64_t universe, bool sum_duplicates,
                       sparse_entry* entries, dr_error& error);

// Copies the rows of values that `entries` name, in their order; rows of equal index are added up in f32, in order, and
// rounded to the type. Returns how many rows there are then; indices [n] gets theirs.
uint64_t gather_entries(uint32_t dtype, uint32_t width, const void* values, const sparse_entry* entries, uint64_t n,
                        uint64_t* indices, void* out);

// out[i] = values[positions[i]], in rows of row_bytes.
void gather(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* out);

// out[positions[i]] = values[i].
void scatter(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* out);

// Whether order[n] is a permutation: the first element that is out of range or comes twice, or n. seen: room for n / 32
// + 1 words.
uint64_t first_misplaced(const uint32_t* order, uint64_t n, uint32_t* seen);

// Sorts keys[n] that carry the order of the values (n < 2^32) and permutes the values, in rows of row_bytes, likewise.
// sorted[n]: keys in the upper half, where they stood in the lower one. Returns n, or the place in `sorted` of a key
// that comes twice.
uint64_t sort_by_keys(uint32_t* keys, uint64_t n, uint64_t row_bytes, const void* values, uint64_t* sorted, void* out);

// Values at ascending `positions` (below a segment's first + 2^32; nullptr: 0, 1, …) among n ascending `indices`; +0 where
// unknown.
void gather_known(uint64_t row_bytes, const uint64_t* indices, const void* values, uint64_t n, uint64_t first,
                  const uint32_t* positions, uint64_t position_count, void* out);

}  // namespace dr
