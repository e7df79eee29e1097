#include "container/frame_device.hpp"

#include <algorithm>

namespace dr {

device_header device_header::of(const header_layout& layout, std::span<const wire_plan> plans, uint64_t universe) {
  device_header out;
  header_shape& h = out.shape;
  std::vector<uint8_t>& head = out.head;
  h.header_size = layout.header_size;
  h.rows = static_cast<uint32_t>(layout.rows);
  h.short_form = layout.short_form;
  h.short_width = layout.short_width;
  h.has_tag = layout.has_tag;
  std::copy(layout.width.begin(), layout.width.end(), h.width);
  // All that write_header writes except the contents of rows, so it is called with empty rows.
  std::vector<wire_row> rows(layout.short_form ? 1 : 0);
  if (layout.short_form) rows[0].universe = universe;
  header_layout bare = layout;
  h.head_size = static_cast<uint32_t>(layout.short_form ? layout.header_size
                                                        : frame_head_size(layout.has_tag) + layout.table.size());
  if (!layout.short_form) {
    bare.rows = 0;
    bare.header_size = padded(h.head_size);
  } else {
    h.short_at = static_cast<uint32_t>(frame_at::count + layout.short_width + layout.table.size());
  }
  head.assign(std::max<size_t>(bare.header_size, layout.header_size), 0);
  write_header(bare, plans, rows, 0, false, head.data());
  head.resize(h.head_size);
  std::fill_n(head.begin() + frame_at::check, frame_check_size, uint8_t{0});
  if (!layout.short_form) store(head.data() + frame_at::rows, h.rows);
  const auto table = static_cast<uint32_t>(layout.short_form ? frame_at::count + layout.short_width
                                                             : h.head_size - layout.table.size());
  uint32_t at = table;
  for (const wire_plan& plan : plans) {
    out.entry_at.push_back(at);
    at += static_cast<uint32_t>(entry_size(plan));
  }
  if (at - table != layout.table.size()) out.entry_at.assign(plans.size(), 0);
  return out;
}

}  // namespace dr
