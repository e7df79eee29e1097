// The container: the header, then the streams, or the dense row where that is shorter.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <map>
#include <memory_resource>

#include "merge/merge.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// A row whose streams exceed the dense row is sent dense.
void choose_modes(const encoding& e, framed& out) {
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    const coded_row& row = e.w.coded.rows[i];
    wire_row& wire = out.rows[i];
    wire.count = e.w.selected.rows[i].count;
    if (row.raw_index) wire.mode = mode_raw_index;
    if (wire.count == 0 && !e.dense_fallback(i)) continue;
    const uint64_t dense = e.b.rows[i].universe * e.row_bytes(i);
    wire.support = row.count;
    for (uint32_t s = 0; s < section_count; ++s) wire.size[s] = e.plan_of(i).lists[s].count ? row.slots[s].size : 0;
    if (wire.mode == mode_raw_index) wire.size[section_index] = 4 * wire.count;
    if (e.dense_fallback(i) || wire.sections() > dense) {
      wire.mode = mode_dense;
      wire.support = e.b.rows[i].universe;
      wire.size = {dense, 0, 0};
    }
  }
}

// ---- Rows that do not fit (DR_CALL_FIT) -----------------------------------------------------------------------

// Restores the values that selection cleared in the state.
void restore_selected(const encoding& e, size_t i) {
  const selected_row& row = e.w.selected.rows[i];
  const unit_sums& sums = e.w.selected.sums[e.b.rows[i].unit];
  const select_piece* const first = e.w.selected.sources[e.b.rows[i].unit].pieces;
  const auto* const values = static_cast<const float*>(row.values);
  uint64_t k = 0;
  for (const select_piece& piece : pieces_of(e, i)) {
    float* const m = sums.pieces[&piece - first].m();
    for (; k < row.count && row.support[k] - piece.position < piece.n; ++k)
      m[row.support[k] - piece.position] = values[k];
  }
}

// Empties a row as if nothing had been selected: all of its gradient remains in the state.
void empty_row(const encoding& e, size_t i, wire_row& wire) {
  if (e.w.selected.units[e.b.rows[i].unit].cleared_from) restore_selected(e, i);
  wire.mode = mode_plan;
  wire.count = wire.support = 0;
  wire.size = {};
}

// Empties rows until the frame is `excess` bytes shorter, or all are empty: repeatedly the smallest row that suffices,
// or the largest row if none suffices.
void leave_out(const encoding& e, uint64_t excess, framed& out) {
  const auto saved = [&out](uint32_t i) { return padded(out.rows[i].payload()); };
  uint32_t* const begin = out.by_size;
  uint32_t* end = begin;
  for (uint32_t i = 0; i < e.b.rows.size(); ++i)
    if (saved(i)) *end++ = i;
  std::sort(begin, end, [&](uint32_t x, uint32_t y) { return saved(x) != saved(y) ? saved(x) < saved(y) : x < y; });
  for (; excess && end != begin; --end) {
    uint32_t* const enough = std::partition_point(begin, end, [&](uint32_t i) { return saved(i) < excess; });
    const uint32_t i = enough == end ? end[-1] : *enough;
    excess -= std::min(excess, saved(i));
    empty_row(e, i, out.rows[i]);
  }
}

// ---- Rows and header ---------------------------------------------------------------------------------------

// The values of rows that are sent dense from the caller's tensors; where the frame is written over one, from a copy.
class dense_values {
 public:
  dense_values(const encoding& e, std::span<const wire_row> rows, const uint8_t* frame, uint64_t size) : e_(e) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].mode != mode_dense || !(e.unit_of(i).patches() || e.unit_of(i).whole)) continue;
      const uint64_t bytes = e.b.rows[i].universe * e.row_bytes(i);
      if (overlap(given(i), bytes, frame, size)) copies_[i].assign(given(i), given(i) + bytes);
    }
  }
  const std::byte* of(size_t row) const {
    const auto copy = copies_.find(row);
    return copy == copies_.end() ? given(row) : copy->second.data();
  }

 private:
  const std::byte* given(size_t row) const {
    const unit& u = e_.unit_of(row);
    if (!u.patches()) return static_cast<const std::byte*>(e_.w.selected.rows[row].values);
    return static_cast<const std::byte*>(e_.tensors[u.first_tensor].values) + e_.b.rows[row].first * e_.row_bytes(row);
  }

  const encoding& e_;
  std::map<size_t, std::vector<std::byte>> copies_;
};

dr_status write_rows(const encoding& e, const header_layout& layout, std::span<const wire_plan> plans, uint8_t* frame,
                     uint64_t capacity, uint64_t& size, framed& out) {
  trace_span span = e.span("container");
  const std::span<wire_row> rows(out.rows.items, e.b.rows.size());
  uint64_t needed = place_rows(layout, rows);
  if (needed > capacity && (e.call.flags & DR_CALL_FIT)) {
    leave_out(e, needed - capacity, out);
    needed = place_rows(layout, rows);
  }
  if (needed > capacity) {
    fail(e.error, DR_E_CAPACITY, "frame: %" PRIu64 " bytes exceed the capacity of %" PRIu64 " (dr_bound: %" PRIu64 ")",
         needed, capacity, e.b.bound());
    e.error.needed = needed;
    return DR_E_CAPACITY;
  }
  const dense_values dense(e, rows, frame, needed);
  for (size_t i = 0; i < rows.size(); ++i) {
    const selected_row& row = e.w.selected.rows[i];
    uint8_t* at = frame + rows[i].offset;
    uint8_t* const end = at + padded(rows[i].payload());
    const unit& u = e.unit_of(i);
    if (rows[i].prefix) std::memcpy(at, e.w.selected.patched_rows[i].checks, patch_checks_size);
    at += rows[i].prefix;
    if (rows[i].mode == mode_dense && u.patches()) {
      std::memcpy(at, dense.of(i), rows[i].sections());
      at += rows[i].sections();
    } else if (rows[i].mode == mode_dense) {
      std::memset(at, 0, rows[i].payload());
      const uint64_t bytes = e.row_bytes(i);
      if (u.whole)
        each_nonzero_run(u.dtype, dense.of(i), e.b.rows[i].universe, u.width, [&](uint64_t first, uint64_t n) {
          std::memcpy(at + first * bytes, dense.of(i) + first * bytes, n * bytes);
        });
      else
        scatter(u.dtype, row.support, row.values, row.count, u.width, u.dtype, at);
      at += rows[i].payload();
    } else {
      for (uint32_t s = 0; s < section_count; ++s) {
        const bool raw = s == section_index && rows[i].mode == mode_raw_index;
        const void* const from = raw ? static_cast<const void*>(row.support) : e.w.coded.rows[i].slots[s].data;
        if (rows[i].size[s] && from != at) std::memmove(at, from, rows[i].size[s]);  // (may be in the frame already)
        at += rows[i].size[s];
      }
    }
    std::memset(at, 0, static_cast<size_t>(end - at));
  }
  write_header(layout, plans, rows, e.call.tag, e.call.flags & DR_CALL_LIST, frame);
  size = span.bytes = needed;
  return DR_OK;
}

}  // namespace

// With auto the header names only the chosen plans.
dr_status write_frame(const encoding& e, uint8_t* frame, uint64_t capacity, uint64_t& size, framed& out) {
  choose_modes(e, out);
  if (!e.b.chooses())
    return write_rows(e, e.b.layout[(e.call.flags & DR_CALL_TAG) != 0], e.b.wire, frame, capacity, size, out);
  std::fill_n(out.places, e.b.wire.size(), UINT32_MAX);
  uint32_t plans = 0;
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    const uint32_t chosen = e.w.chosen[i].plan;
    uint32_t& place = out.places[chosen];
    if (place == UINT32_MAX) {
      place = plans++;
      new (out.plans + place) wire_plan(e.plan_of(i));
    }
    row_bound bound = e.b.rows[i].bound;
    for (const row_choice& c : e.b.rows[i].choices)
      if (c.plan == chosen) bound = c.bound;
    out.rows[i].plan = bound.plan = place;
    out.bounds[i] = bound;
  }
  std::pmr::monotonic_buffer_resource room(out.table, table_max(e.b), std::pmr::null_memory_resource());
  header_layout layout{.table = std::pmr::vector<uint8_t>(&room)};
  layout.table.reserve(table_max(e.b));
  const std::span<const wire_plan> taken(out.plans, plans);
  if (const dr_status s =
          lay_out_header(taken, {out.bounds, e.b.rows.size()}, e.call.flags & DR_CALL_TAG, layout, e.error))
    return s;
  return write_rows(e, layout, taken, frame, capacity, size, out);
}

}  // namespace dr
