// A header in the form that the kernels of container/frame_tile.hpp read.
#pragma once

#include <span>
#include <vector>

#include "container/frame.hpp"
#include "container/frame_tile.hpp"

namespace dr {

// The headers of a layout: their shape, and the bytes before the columns, with zeros in fields that depend on data, tag
// or list.
struct device_header {
  header_shape shape{};
  std::vector<uint8_t> head;
  std::vector<uint32_t> entry_at;  // the offset of every plan's entry; 0 if the table has other plans, too

  // universe: the row's, for the short form
  static device_header of(const header_layout& layout, std::span<const wire_plan> plans, uint64_t universe);
};

}  // namespace dr
