// Payloads that are made where the frame has them, and not copied.
#include <algorithm>

#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Whether a list writes to any address, so many bytes, and never fails: `codec.h` promises an aligned one to plug-ins.
bool writes_anywhere(const stage_list& value) {
  return value.fixed_size() && !value.has(DR_REORDERS) && value.front().codec->id < 0x8000;
}

// Whether a row is sent whole, by a codec that will not fail.
bool is_sound(const encoding& e, size_t i) {
  const wire_plan& plan = e.plan_of(i);
  if (!e.unit_of(i).whole || !plan.index().whole() || !writes_anywhere(plan.value())) return false;
  const bool finite = with_value_type(plan.dtype, [&](auto type) { return e.w.rows[i].largest < type.infinity; });
  return finite || !plan.value().has(DR_NEEDS_FINITE);
}

// Whether the frame has bytes of a tensor: those are read while it is written.
bool overlaps(const tensor_shape& shape, const tensor_view& t, const uint8_t* frame, uint64_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(t.values), at = reinterpret_cast<uintptr_t>(frame);
  return begin < at + size && at < begin + shape.elements() * value_size(shape.dtype);
}

}  // namespace

// A call that fails leaves the frame untouched, so this is for calls that cannot fail any more.
void place_payloads(encoding& e, uint8_t* frame, uint64_t capacity) {
  const header_layout& layout = e.b.layout[(e.call.flags & DR_CALL_TAG) != 0];
  if (e.b.chooses() || capacity < layout.frame_bound) return;
  for (size_t i = 0; i < e.tensors.size(); ++i)
    if (e.b.shapes[i].sparse() || e.tensors[i].base || overlaps(e.b.shapes[i], e.tensors[i], frame, layout.frame_bound))
      return;
  for (size_t i = 0; i < e.b.rows.size(); ++i)
    if (e.w.rows[i].fault.code || e.w.units[e.b.rows[i].unit].dense_fallback || (e.w.rows[i].count && !is_sound(e, i)))
      return;
  uint64_t at = layout.header_size;
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    stream_slot& slot = e.w.rows[i].slots[section_value];
    if (e.w.rows[i].count == 0) continue;
    const uint64_t size = slot.need.payload[0];
    // (One that is sent dense instead is made elsewhere.)
    const uint64_t dense = e.b.rows[i].universe * e.row_bytes(i);
    if (size <= dense) slot.buffer[0] = frame + at;
    at += padded(std::min(size, dense));
  }
}

}  // namespace dr
