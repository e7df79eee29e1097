// Payloads that codecs write to the frame directly, without a copy.
#include <algorithm>

#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Whether a list writes to any address, and never fails: codec.h promises an aligned address to plug-ins.
bool writes_anywhere(const stage_list& value) {
  return (value.fixed_size() || value.total()) && !value.has(DR_REORDERS | DR_NEEDS_BASE) &&
         !is_private(*value.front().codec);
}

// Whether a row is sent whole, by a codec that cannot fail.
bool is_sound(const encoding& e, size_t i) {
  const wire_plan& plan = e.plan_of(i);
  if (!e.unit_of(i).whole || !plan.index().whole() || !writes_anywhere(plan.value())) return false;
  const bool finite =
      with_value_type(plan.dtype, [&](auto type) { return e.w.selected.rows[i].largest < type.infinity; });
  return finite || !plan.value().has(DR_NEEDS_FINITE);
}

// Whether the frame overlaps a tensor's `values`, which are read while the frame is written.
bool overlaps(const tensor_shape& shape, const void* values, const uint8_t* frame, uint64_t size) {
  return overlap(values, shape.elements() * value_size(shape.dtype), frame, size);
}

// Bytes for a row in the frame until all rows are coded. A code of variable size may exceed the dense row, which is
// then sent instead.
uint64_t room_of(const batch& b, const batch_row& r) {
  const wire_plan& plan = b.wire[r.plan];
  const uint64_t dense = r.universe * plan.width * value_size(plan.dtype), size = r.need[section_value].payload[0];
  return padded(prefix_size(plan) + (plan.value().fixed_size() ? std::min(size, dense) : std::max(size, dense)));
}

}  // namespace

uint64_t payload_excess(const batch& b) {
  uint64_t all = 0;
  for (const batch_row& r : b.rows) {
    const wire_plan& plan = b.wire[r.plan];
    if (!b.units[r.unit].whole || !writes_anywhere(plan.value()) || plan.value().fixed_size()) continue;
    const uint64_t bound = padded(r.bound.payload);
    all += std::max(room_of(b, r), bound) - bound;
  }
  return all;
}

// A failing call must not change the frame, so this is only for calls that can no longer fail.
void place_payloads(const encoding& e, uint8_t* frame, uint64_t capacity, streams& out) {
  const header_layout& layout = e.b.layout[(e.call.flags & DR_CALL_TAG) != 0];
  if (e.b.chooses() || capacity < layout.frame_bound) return;
  for (size_t i = 0; i < e.b.rows.size(); ++i)
    if (e.dense_fallback(i) || (e.w.selected.rows[i].count && !is_sound(e, i))) return;
  for (size_t i = 0; i < e.tensors.size(); ++i)
    if (e.b.shapes[i].sparse() || overlaps(e.b.shapes[i], e.tensors[i].values, frame, layout.frame_bound) ||
        (e.tensors[i].base && overlaps(e.b.shapes[i], e.tensors[i].base, frame, layout.frame_bound)))
      return;
  // Rows are written in order, at or after their final position: write_frame moves those that are after it.
  uint64_t at = layout.header_size;
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    const batch_row& r = e.b.rows[i];
    const uint64_t prefix = prefix_size(e.plan_of(i));
    if (e.w.selected.rows[i].count == 0) {
      at += padded(prefix);
      continue;
    }
    stream_slot& slot = out.rows[i].slots[section_value];
    const uint64_t room = room_of(e.b, r);
    // (A row of fixed size that is sent dense instead is coded elsewhere.)
    if (padded(prefix + slot.need.payload[0]) <= room) slot.buffer[0] = frame + at + prefix;
    at += room;
  }
}

}  // namespace dr
