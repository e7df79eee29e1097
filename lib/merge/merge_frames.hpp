// Decoded frames into gradients: dense, or the union of their supports.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/arena.hpp"
#include "core/pool.hpp"
#include "deepreduce/deepreduce.h"
#include "primitive/tile_form.hpp"
#include "primitive/value_type.hpp"

namespace dr {

using tensor_out = dr_tensor_out;
inline uint32_t width_of(const tensor_out& o) { return std::max(1u, o.width); }
inline std::byte* at_element(const tensor_out& o, uint64_t element) {
  return static_cast<std::byte*>(o.values) + element * value_size(o.dtype);
}

// A decoded row: a tensor of a frame, or a segment of one.
struct decoded_row {
  const uint32_t* support;  // [count] ascending, below universe; nullptr: every row of the universe
  const void* values;       // [count · width] in the order of the support
  uint64_t universe, count;
  uint32_t dtype, width;
  uint32_t tensor;    // of the frame
  tile_form tiles{};  // the values are coefficients of these

  uint64_t row_bytes() const { return uint64_t{width} * value_size(dtype); }
  const std::byte* values_at(uint64_t at) const { return static_cast<const std::byte*>(values) + at * row_bytes(); }
  // The position of the first row of the support that is not below `row`.
  uint64_t position_of(uint64_t row) const {
    return support ? static_cast<uint64_t>(std::lower_bound(support, support + count, row) - support) : row;
  }
};
using decoded_frame = std::span<const decoded_row>;

// The memory of a worker that merges frames.
struct merge_scratch {
  struct cursor {
    size_t row;      // of its frame
    uint64_t first;  // rows of the universe before it
    uint64_t at;     // in its support
  };
  struct waiting {
    uint64_t next;  // row of the output
    size_t frame;
  };
  static constexpr uint32_t parts = 4;  // of each sparse output of a merge, a worker
  static constexpr uint64_t tile_bytes = 4 * 32768;

  cursor* cursors = nullptr;  // [frames]
  std::byte* tile = nullptr;
  waiting* heap = nullptr;     // [frames]: of a sparse output
  size_t* busy = nullptr;      // [frames]: of a tile
  uint64_t* counts = nullptr;  // [outputs · parts]: rows of unions

  static merge_scratch lay_out(arena& memory, size_t frames, size_t outs) {
    return {memory.allocate<cursor>(frames), memory.allocate<std::byte>(tile_bytes), memory.allocate<waiting>(frames),
            memory.allocate<size_t>(frames), memory.allocate<uint64_t>(parts * uint64_t{outs})};
  }
};

enum class merge_mode {
  copy,  // one frame, as it is; zeros elsewhere
  sum,   // Σ weight · frame from +0
  add    // the same, added to the outputs' contents
};

// The outputs whose sums become votes.
struct voters {
  bool all = false;
  const uint8_t* each = nullptr;  // [outputs], or nullptr
  bool operator()(size_t output) const { return all || (each && each[output]); }
};

// Merges frames into the dense outputs, which they cover one after the other, in the order of the frames for every
// element. Adds the number of merged pairs to an output's `count`. weights [frames]; nullptr: all 1.
void merge_dense(std::span<const decoded_frame> frames, const float* weights, merge_mode mode, const voters& votes,
                 const merge_scratch* scratch, pool& workers, std::span<tensor_out> outs);

// Writes the tensors of one frame to the sparse outputs, and sets their `count`.
void write_sparse(decoded_frame frame, std::span<tensor_out> outs);

// Merges frames into the sparse outputs, tensor by tensor: the first function counts the rows of the unions, in
// scratch; the last one writes them and sets `count`.
void count_union_rows(std::span<const decoded_frame> frames, const merge_scratch* scratch, pool& workers,
                      std::span<const tensor_out> outs);
uint64_t union_rows(const merge_scratch* scratch, const pool& workers, size_t output);
void merge_unions(std::span<const decoded_frame> frames, const float* weights, const merge_scratch* scratch,
                  pool& workers, std::span<tensor_out> outs);

}  // namespace dr
