// How a batch is cut into ranges of about equally many elements: the same on every rank, since shapes and plan decide
// it.
#pragma once

#include <span>
#include <vector>

#include "pipeline/batch.hpp"

namespace dr {

inline uint64_t width_of(const tensor_view& t) { return t.width ? t.width : 1; }

// Rows [first, first + rows) of a tensor.
struct piece {
  uint32_t tensor;
  uint64_t first, rows;
};
using piece_list = std::vector<piece>;

// [ranges] lists of pieces, together all rows of all tensors in order; a list may be empty. A tensor is cut only if it
// is dense, large, and its plan selects a share of its elements, not a fixed number: that many would be selected in each
// piece.
std::vector<piece_list> cut(std::span<const tensor_view> tensors, std::span<const plan* const> methods,
                            uint32_t ranges);

}  // namespace dr
