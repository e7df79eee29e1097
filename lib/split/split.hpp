// From a gradient to its two streams: sorts sparse input, gathers values at a support.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// An index and the position of its row of values.
struct sparse_entry {
  uint64_t index, position;
};

// Reads n indices of a framework's type into ascending entries. ARGUMENT: one is negative or not below universe, or
// (unless duplicates are summed) occurs twice. Stable: equal indices remain in input order.
dr_status sort_indices(uint32_t index_dtype, const void* indices, uint64_t n, uint64_t universe, bool sum_duplicates,
                       sparse_entry* entries, dr_error& error);

// Copies the rows of values in the order of `entries`; rows of equal index are added in f32, in order. The result has
// the type out_dtype: dtype, to which a sum is rounded, or DR_F32. Returns the number of rows; their indices are written
// to indices [n].
uint64_t gather_entries(uint32_t dtype, uint32_t out_dtype, uint32_t width, const void* values,
                        const sparse_entry* entries, uint64_t n, uint64_t* indices, void* out);

// out[i] = values[positions[i]], for rows of row_bytes bytes.
void gather(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* out);

// out[positions[i]] = values[i].
void scatter(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* out);

// The first element of order[n] that is out of range or occurs twice; n: it is a permutation. seen [n / 32 + 1]:
// scratch.
uint64_t first_misplaced(const uint32_t* order, uint64_t n, uint32_t* seen);

// Sorts keys[n] that carry the order of the values (n < 2^32) and permutes the values, rows of row_bytes, in the same
// way. sorted[n]: keys in the upper half, their old positions in the lower half. Returns n, or the position in `sorted`
// of a key that occurs twice.
uint64_t sort_by_keys(uint32_t* keys, uint64_t n, uint64_t row_bytes, const void* values, uint64_t* sorted, void* out);

// Values at ascending `positions` (below a segment's first + 2^32; nullptr: 0, 1, …) among n ascending `indices`; +0
// where there is none.
void gather_known(uint64_t row_bytes, const uint64_t* indices, const void* values, uint64_t n, uint64_t first,
                  const uint32_t* positions, uint64_t position_count, void* out);

}  // namespace dr
