// From pairs to a gradient: scattered, added, or returned sparse. The support is valid: ascending, in range.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// Converts values to another type; copies the bits if the types are equal.
void convert(uint32_t from_type, const void* from, uint64_t n, uint32_t to_type, void* to);

// out[support[i]] = values[i], for rows of `width`; support nullptr: all rows from 0.
void scatter(uint32_t from_type, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
             uint32_t to_type, void* out);

// out[support[i]] += weight · values[i], in f32, rounded to out's type.
void scatter_add(uint32_t from_type, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                 float weight, uint32_t to_type, void* out);

// How pairs are merged into a dense gradient: stored, or weighted and added.
struct pair_sink {
  uint32_t from_type, to_type, width;
  bool adds;
  float weight;
};

// Merges the pairs of an ascending support, up to `end`, to out[(support[i] - first) · width]. Returns their number.
uint64_t put_pairs(const pair_sink& sink, const uint32_t* support, const void* values, uint64_t count, uint64_t first,
                   uint64_t end, void* out);
// Merges rows without a support, in order.
void put_rows(const pair_sink& sink, const void* values, uint64_t count, void* out);

// Replaces every value by its sign, ±0 by +1; NaN do not change.
void replace_by_signs(uint32_t dtype, void* values, uint64_t n);

// Copies past the caches, for data that exceeds them.
void stream_out(const void* from, uint64_t size, void* to);

// Writes first + support[i] as a framework's index type; support nullptr: first + i.
void write_indices(const uint32_t* support, uint64_t count, uint64_t first, uint32_t index_type, void* out);

}  // namespace dr
