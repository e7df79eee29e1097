#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "container/frame.hpp"
#include "container/plan_table.hpp"

namespace dr {
namespace {

constexpr uint64_t short_header_max = 28;  // so that header and padding cost at most 32 bytes
constexpr uint64_t short_limit = uint64_t{1} << 24;

}  // namespace

dr_status lay_out_header(std::span<const wire_plan> plans, std::span<const row_bound> rows, bool has_tag,
                         header_layout& out, dr_error& error) {
  out.has_tag = has_tag;
  out.rows = rows.size();
  for (const wire_plan& plan : plans) serialise(plan, out.table);
  if (plans.size() > 8192 || out.table.size() > 0xffff || rows.size() > UINT32_MAX)
    return fail(error, DR_E_UNSUPPORTED, "frame: %zu plans in %zu bytes, %zu segments: more than a header holds",
                plans.size(), out.table.size(), rows.size());
  uint64_t max[frame_columns] = {}, payloads = 0;
  bool fits_short = rows.size() == 1 && !has_tag;
  for (const row_bound& r : rows) {
    const wire_plan& plan = plans[r.plan];
    const uint64_t size[section_count] = {r.value, r.order, r.index};
    max[col_universe] = std::max(max[col_universe], r.universe);
    max[col_count] = std::max(max[col_count], r.count);
    if (plan.replaces_support()) max[col_support] = std::max({max[col_support], r.support, r.count, uint64_t{1}});
    for (uint32_t s = 0; s < section_count; ++s)
      if (plan.lists[s].count && !plan.lists[s].fixed_size()) {
        max[col_size + s] = std::max(max[col_size + s], std::max<uint64_t>(size[s], 1));
      }
    fits_short = fits_short && r.universe < short_limit;
    payloads += padded(r.payload);
  }
  // If the column exists, every row states its support: the count, if its codec does not replace the support.
  if (max[col_support]) max[col_support] = std::max(max[col_support], max[col_count]);
  if (fits_short) {
    const uint64_t largest = *std::max_element(max + col_count, max + frame_columns);
    out.short_width = largest < 1u << 16 ? 2 : 3;
    uint64_t size = frame_at::count + out.short_width + out.table.size();
    for (size_t c = col_support; c < frame_columns; ++c) size += max[c] ? out.short_width : 0;
    out.short_form = size <= short_header_max && largest < short_limit;
    out.header_size = padded(size);
  }
  if (!out.short_form) {
    out.width[col_info] = plans.size() > 32 ? 2 : 1;
    out.width[col_universe] = static_cast<uint8_t>(std::max(1u, bytes_for(max[col_universe])));
    for (size_t c = col_count; c < out.width.size(); ++c) out.width[c] = static_cast<uint8_t>(bytes_for(max[c]));
    uint64_t row = rows.size() == 1 ? 0 : 8;
    for (const uint8_t w : out.width) row += w;
    out.header_size = padded(frame_head_size(has_tag) + out.table.size() + row * rows.size());
  }
  out.frame_bound = out.header_size + payloads;
  return DR_OK;
}

uint64_t place_rows(const header_layout& layout, std::span<wire_row> rows) {
  uint64_t at = layout.header_size;
  for (wire_row& row : rows) {
    row.offset = at;
    at += padded(row.payload());
  }
  return at;
}

void write_header(const header_layout& layout, std::span<const wire_plan> plans, std::span<const wire_row> rows,
                  uint64_t tag, bool list, uint8_t* frame) {
  const auto stored = [&](const wire_row& row, uint32_t c) -> uint64_t {
    if (c == col_info) return row_info(row.mode, row.continues, row.plan);
    const bool stores_size = c >= col_size && !plans[row.plan].lists[c - col_size].fixed_size();
    return stored_column(row, stores_size ? row_stores_size << (c - col_size) : 0, c);
  };
  std::memset(frame, 0, layout.header_size);
  uint32_t flags = (list ? uint32_t{DR_FRAME_LIST} : 0u) | (layout.has_tag ? uint32_t{DR_FRAME_TAG} : 0u);
  uint64_t frame_size = layout.header_size;
  for (const wire_row& row : rows) frame_size += padded(row.payload());
  if (layout.short_form) {
    const wire_row& row = rows[0];
    const uint32_t stores = row_flags(plans[0]);
    flags |= DR_FRAME_SHORT | short_mode_flags(row.mode) | (layout.short_width == 2 ? short_small : 0);
    store_bytes(frame + frame_at::universe, row.universe, 3);
    uint8_t* at = frame + frame_at::count;
    const auto put = [&](uint32_t c) {
      store_bytes(at, stored(row, c), layout.short_width);
      at += layout.short_width;
    };
    put(col_count);
    at = std::copy(layout.table.begin(), layout.table.end(), at);
    for (uint32_t c = col_support; c < frame_columns; ++c)
      if (short_stores(stores, c)) put(c);
  } else {
    store(frame + frame_at::rows, static_cast<uint32_t>(rows.size()));
    store(frame + frame_at::table, static_cast<uint16_t>(layout.table.size()));
    uint32_t widths = 0;
    for (size_t c = 0; c < layout.width.size(); ++c) widths |= static_cast<uint32_t>(layout.width[c]) << (4 * c);
    store(frame + frame_at::widths, widths);
    uint8_t* at = frame + frame_at::tag;
    if (layout.has_tag) {
      store(at, tag);
      at += 8;
    }
    at = std::copy(layout.table.begin(), layout.table.end(), at);
    if (rows.size() != 1)
      for (const wire_row& row : rows) {
        store(at, check(frame + row.offset, padded(row.payload())));
        at += 8;
      }
    for (uint32_t c = 0; c < frame_columns; ++c)
      if (layout.width[c])
        for (const wire_row& row : rows) {
          store_bytes(at, stored(row, c), layout.width[c]);
          at += layout.width[c];
        }
  }
  put_prologue(frame, flags);
  store(frame + frame_at::check,
        check_with_hole(frame, rows.size() == 1 ? frame_size : layout.header_size, frame_at::check));
}

size_t write_status_frame(dr_status status, const char* message, bool has_tag, uint64_t tag, uint8_t* frame) {
  const size_t length = std::min<size_t>(std::strlen(message), status_message_max);
  return static_cast<size_t>(put_status_frame(static_cast<uint32_t>(status), message, length, has_tag, tag, frame));
}

}  // namespace dr
