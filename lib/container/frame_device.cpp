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
  // All that write_header writes but what it reads from rows, so from rows that say nothing.
  std::vector<wire_row> rows(layout.short_form ? 1 : 0);
  if (layout.short_form) rows[0].universe = universe;
  header_layout bare = layout;
  h.head_size = static_cast<uint32_t>(layout.short_form ? layout.header_size
                                                        : 24 + (layout.has_tag ? 8 : 0) + layout.table.size());
  if (!layout.short_form) {
    bare.rows = 0;
    bare.header_size = padded(h.head_size);
  } else {
    h.short_at = static_cast<uint32_t>(15 + layout.short_width + layout.table.size());
  }
  head.assign(std::max<size_t>(bare.header_size, layout.header_size), 0);
  write_header(bare, plans, rows, 0, false, head.data());
  head.resize(h.head_size);
  std::fill(head.begin() + frame_check_at, head.begin() + frame_check_at + 8, uint8_t{0});
  if (!layout.short_form) store(head.data() + 12, h.rows);
  const auto table =
      static_cast<uint32_t>(layout.short_form ? 15 + layout.short_width : h.head_size - layout.table.size());
  uint32_t at = table;
  for (const wire_plan& plan : plans) {
    out.entry_at.push_back(at);
    at += static_cast<uint32_t>(entry_size(plan));
  }
  if (at - table != layout.table.size()) out.entry_at.assign(plans.size(), 0);
  return out;
}

uint32_t row_flags(const wire_plan& plan) {
  uint32_t flags = plan.replaces_support() ? uint32_t{row_replaces_support} : 0;
  for (uint32_t s = 0; s < section_count; ++s)
    if (plan.lists[s].count)
      flags |= row_lists_section << s | (plan.lists[s].fixed_size() ? 0u : uint32_t{row_stores_size} << s);
  return flags;
}

}  // namespace dr
