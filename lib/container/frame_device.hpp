// A header as the kernels of container/frame_tile.hpp take it.
#pragma once

#include <span>
#include <vector>

#include "container/frame.hpp"
#include "container/frame_tile.hpp"

namespace dr {

// The headers of a layout: their shape, and the bytes in front of the columns, with zeros where data, tag or list
// decide.
struct device_header {
  header_shape shape{};
  std::vector<uint8_t> head;
  std::vector<uint32_t> entry_at;  // of each plan in it; 0 if the table has others, too

  // universe: of the row, for the short form
  static device_header of(const header_layout& layout, std::span<const wire_plan> plans, uint64_t universe);
};

}  // namespace dr
