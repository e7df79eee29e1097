// From pairs to a gradient: scattered, added, or returned sparse. The support is valid: ascending, in range.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// A number of one type as another: bit for bit if they are the same.
void convert(uint32_t from_type, const void* from, uint64_t n, uint32_t to_type, void* to);

// out[support[i]] = values[i], rows of `width`; support nullptr: all rows from 0.
void scatter(uint32_t from_type, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
             uint32_t to_type, void* out);

// out[support[i]] += weight · values[i], in f32, rounded to out's type.
void scatter_add(uint32_t from_type, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                 float weight, uint32_t to_type, void* out);

// How pairs reach a dense gradient: stored, or weighted and added.
struct pair_sink {
  uint32_t from_type, to_type, width;
  bool adds;
  float weight;
};

// The pairs of an ascending support, below `end`, at out[(support[i] - first) · width]. Returns how many those were.
uint64_t put_pairs(const pair_sink& sink, const uint32_t* support, const void* values, uint64_t count, uint64_t first,
                   uint64_t end, void* out);
// Rows without a support, one after the other.
void put_rows(const pair_sink& sink, const void* values, uint64_t count, void* out);

// The sign of each value, +1 of ±0; NaN stay.
void take_signs(uint32_t dtype, void* values, uint64_t n);

// A copy past the caches, for data larger than they are.
void stream_out(const void* from, uint64_t size, void* to);

// first + support[i] as a framework's index type; support nullptr: i.
void write_indices(const uint32_t* support, uint64_t count, uint64_t first, uint32_t index_type, void* out);

}  // namespace dr
