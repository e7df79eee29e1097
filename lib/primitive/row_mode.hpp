// Rows of a frame (tensors, or segments of one) as every stage names them; container/FORMAT.md is normative.
#pragma once

#include <cstdint>

#include "deepreduce/deepreduce.h"

namespace dr {

// How a row is sent.
enum row_mode : uint32_t {
  mode_plan = DR_FALLBACK_NONE,            // as its stage lists say
  mode_raw_index = DR_FALLBACK_RAW_INDEX,  // u32 keys in place of the index list
  mode_dense = DR_FALLBACK_DENSE           // all values of the universe
};

// Sections of a row, in their order on the wire.
enum section : uint32_t { section_value = 0, section_order = 1, section_index = 2, section_count = 3 };

}  // namespace dr
