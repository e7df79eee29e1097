#include "container/frame.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "core/registry.hpp"
#include "primitive/check.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

constexpr uint64_t short_header_max = 28;  // so that header and padding cost at most 32 bytes
constexpr uint64_t short_limit = uint64_t{1} << 24;
constexpr uint32_t short_small = 1u << 6;  // flag: counts and sizes have 2 bytes
constexpr size_t general_size = 24, check_at = 4;
constexpr uint64_t plan_entry_min = 4;  // bytes: counts, type, an id of each of two codecs
enum column : size_t { col_info, col_universe, col_count, col_support, col_size };  // three sizes, in wire order
constexpr uint32_t known_flags = DR_FRAME_SHORT | DR_FRAME_TAG | DR_FRAME_LIST | DR_FRAME_STATUS;

// ---- Plan entries -----------------------------------------------------------------------------------------

void append_varint(std::pmr::vector<uint8_t>& out, uint64_t x) {
  uint8_t bytes[10];
  out.insert(out.end(), bytes, put_varint(bytes, x));
}

void put_stage(std::pmr::vector<uint8_t>& out, const stage& s) {
  size_t given = s.codec->field_count;
  while (given && s.fields[given - 1] == dr_field_at(s.codec->fields, given - 1)->fallback) --given;
  append_varint(out, uint64_t{s.codec->id} * 2 + (given > 0));
  if (!given) return;
  const size_t length = out.size();
  out.push_back(0);
  for (size_t i = 0; i < given; ++i) append_varint(out, s.fields[i]);
  out[length] = static_cast<uint8_t>(out.size() - length - 1);
}

void serialise(const wire_plan& plan, std::pmr::vector<uint8_t>& out) {
  out.push_back(static_cast<uint8_t>(plan.value().count | plan.index().count << 3 | plan.order().count << 6));
  out.push_back(static_cast<uint8_t>(plan.dtype | (plan.carries_order ? 16u : 0u) | (plan.width > 1 ? 32u : 0u)));
  if (plan.width > 1) append_varint(out, plan.width);
  for (const stage_list& list : plan.lists)
    for (const stage& s : list) put_stage(out, s);
}

// A reader that never passes its end.
struct cursor {
  const uint8_t* at;
  const uint8_t* end;

  uint64_t left() const { return static_cast<uint64_t>(end - at); }
  bool u8(uint32_t& x) {
    if (at == end) return false;
    x = *at++;
    return true;
  }
  bool varint(uint64_t& x) {
    const uint8_t* const behind = get_varint(at, end, x);
    if (behind) at = behind;
    return behind;
  }
};

dr_status bad(dr_error& error, const char* what, uint64_t value) {
  return fail(error, DR_E_CORRUPT, "frame: %s (value %" PRIu64 ")", what, value);
}

// Room that FORMAT.md leaves for later.
dr_status later(dr_error& error, const char* what, uint64_t value) {
  return fail(error, DR_E_UNSUPPORTED, "frame: %s (value %" PRIu64 "); a later version may", what, value);
}

dr_status read_stage(cursor& in, dr_role role, stage& out, dr_error& error) {
  uint64_t head;
  if (!in.varint(head)) return bad(error, "the plan table breaks off in a codec's id", in.left());
  const uint64_t id = head >> 1;
  out.codec = id <= 0xffff ? find_codec(role, static_cast<uint32_t>(id)) : nullptr;
  uint32_t length = 0;
  if (head & 1) {
    if (!in.u8(length) || length == 0 || length > in.left())
      return bad(error, "a codec's fields do not fit the plan table", length);
  }
  if (!out.codec)
    return fail(error, DR_E_UNSUPPORTED, "frame: %s codec 0x%" PRIx64 " is not known here; load its plug-in",
                role_name(role), id);
  cursor fields{in.at, in.at + length};
  in.at += length;
  size_t given = 0;
  for (; fields.left(); ++given) {
    uint64_t x;
    if (given == out.codec->field_count || !fields.varint(x))
      return bad(error, "a codec has other fields than it declares", given);
    const dr_field& f = *dr_field_at(out.codec->fields, given);
    if (x < f.minimum || x > f.maximum)
      return fail(error, DR_E_CORRUPT, "frame: %s: %s = %" PRIu64 " is not in %" PRIu64 " … %" PRIu64, out.codec->name,
                  f.name, x, f.minimum, f.maximum);
    out.fields[given] = x;
  }
  if (given && out.fields[given - 1] == dr_field_at(out.codec->fields, given - 1)->fallback)
    return bad(error, "a trailing field has its default", given - 1);
  for (size_t i = given; i < out.codec->field_count; ++i) out.fields[i] = dr_field_at(out.codec->fields, i)->fallback;
  return DR_OK;
}

dr_status read_plan(cursor& in, wire_plan& out, dr_error& error) {
  uint32_t counts, type;
  if (!in.u8(counts) || !in.u8(type)) return bad(error, "the plan table breaks off", in.left());
  out.dtype = type & 15;
  out.carries_order = type & 16;
  const uint32_t count[section_count] = {counts & 7, counts >> 6, counts >> 3 & 7};
  if (out.dtype > DR_BF16 || type >> 6) return later(error, "a value type that this library does not know", type);
  for (const uint32_t s : {section_value, section_index})
    if (count[s] == 0 || count[s] > stages_max) return later(error, "a stream of 0, 6 or 7 codecs", count[s]);
  if (!is_value_type(out.dtype)) return bad(error, "no value type in the plan table", type);
  if (type & 32) {
    uint64_t width;
    if (!in.varint(width) || width < 2 || width > universe_max)
      return bad(error, "a row's width is not 2 … 2^32 - 1", out.width);
    out.width = static_cast<uint32_t>(width);
  }
  constexpr dr_role role[section_count] = {DR_ROLE_VALUE, DR_ROLE_ORDER, DR_ROLE_INDEX};
  for (uint32_t s = 0; s < section_count; ++s) {
    stage_list& list = out.lists[s];
    for (; list.count < count[s]; ++list.count)
      if (const dr_status status =
              read_stage(in, list.count ? dr_role{DR_ROLE_BYTES} : role[s], list.stages[list.count], error))
        return status;
  }
  const bool reorders = out.value().has(DR_REORDERS);
  if ((out.value().front().codec->dtypes & DR_DTYPE_BIT(out.dtype)) == 0 || (reorders && out.width != 1))
    return bad(error, "a value codec does not take this type or width", type);
  if (out.carries_order && !(reorders && out.index().has(DR_CARRIES_ORDER)))
    return bad(error, "the keys cannot carry an order", type);
  if ((out.order().count != 0) != (reorders && !out.carries_order))
    return bad(error, "an order is missing or in excess", counts);
  return DR_OK;
}

// Sizes that are not stored, and bounds on those that are.
dr_status judge_row(const wire_plan& plan, wire_row& row, uint64_t number, dr_error& error) {
  const auto corrupt = [&](const char* what, uint64_t value) {
    return fail(error, DR_E_CORRUPT, "frame: row %" PRIu64 ": %s (value %" PRIu64 ")", number, what, value);
  };
  const uint64_t row_bytes = uint64_t{plan.width} * value_size(plan.dtype);
  if (row.mode == mode_dense) {
    if (row.size[section_value] || row.size[section_order] || row.size[section_index] || row.support)
      return corrupt("a dense row stores sizes", row.payload());
    row.support = row.universe;
    row.size[section_value] = row.universe * row_bytes;  // < 2^32 · 2^32 · 4: checked below
    if (row.universe && row.size[section_value] / row.universe != row_bytes)
      return corrupt("its size overflows", row.universe);
    return DR_OK;
  }
  if (row.count == 0) {
    if (row.payload() || row.support) return corrupt("an empty row has a payload or a support", row.payload());
    return DR_OK;
  }
  if (row.support == 0) return corrupt("a row with a count has no support", row.count);
  for (uint32_t s = 0; s < section_count; ++s) {
    const stage_list& list = plan.lists[s];
    const bool raw_index = s == section_index && row.mode == mode_raw_index;
    if (list.count == 0 || raw_index) {
      if (row.size[s]) return corrupt("a size is stored of a stream that is not there", row.size[s]);
      if (raw_index) row.size[s] = 4 * row.count;
      continue;
    }
    const uint64_t count = s == section_index ? row.count : row.support;
    if (count && row_bytes > UINT64_MAX / 16 / count) return corrupt("its size overflows", count);
    list_need need;
    if (list_needs(list, {row.universe, count, plan.dtype, plan.width}, need))
      return corrupt("the fields of a codec do not fit it", s);
    if (list.fixed_size()) {
      if (row.size[s]) return corrupt("a size is stored of a stream of fixed size", row.size[s]);
      row.size[s] = need.last(list);
    }
  }
  return DR_OK;
}

}  // namespace

// ---- Writing ----------------------------------------------------------------------------------------------

dr_status lay_out_header(std::span<const wire_plan> plans, std::span<const row_bound> rows, bool has_tag,
                         header_layout& out, dr_error& error) {
  out.has_tag = has_tag;
  out.rows = rows.size();
  for (const wire_plan& plan : plans) serialise(plan, out.table);
  if (plans.size() > 8192 || out.table.size() > 0xffff || rows.size() > UINT32_MAX)
    return fail(error, DR_E_UNSUPPORTED, "frame: %zu plans in %zu bytes, %zu rows: more than a header holds",
                plans.size(), out.table.size(), rows.size());
  uint64_t most[7] = {}, payloads = 0;
  bool fits_short = rows.size() == 1 && !has_tag;
  for (const row_bound& r : rows) {
    const wire_plan& plan = plans[r.plan];
    const uint64_t size[section_count] = {r.value, r.order, r.index};
    most[col_universe] = std::max(most[col_universe], r.universe);
    most[col_count] = std::max(most[col_count], r.count);
    if (plan.replaces_support()) most[col_support] = std::max({most[col_support], r.support, r.count, uint64_t{1}});
    for (uint32_t s = 0; s < section_count; ++s)
      if (plan.lists[s].count && !plan.lists[s].fixed_size()) {
        most[col_size + s] = std::max(most[col_size + s], std::max<uint64_t>(size[s], 1));
      }
    fits_short = fits_short && r.universe < short_limit;
    payloads += padded(r.payload);
  }
  // Where there is the column, every row states its support: the count, if its codec keeps it.
  if (most[col_support]) most[col_support] = std::max(most[col_support], most[col_count]);
  if (fits_short) {
    const uint64_t largest = *std::max_element(most + col_count, most + 7);
    out.short_width = largest < 1u << 16 ? 2 : 3;
    uint64_t size = 15 + out.short_width + out.table.size();
    for (size_t c = col_support; c < 7; ++c) size += most[c] ? out.short_width : 0;
    out.short_form = size <= short_header_max && largest < short_limit;
    out.header_size = padded(size);
  }
  if (!out.short_form) {
    out.width[col_info] = plans.size() > 32 ? 2 : 1;
    out.width[col_universe] = static_cast<uint8_t>(std::max(1u, bytes_for(most[col_universe])));
    for (size_t c = col_count; c < out.width.size(); ++c) out.width[c] = static_cast<uint8_t>(bytes_for(most[c]));
    uint64_t row = rows.size() == 1 ? 0 : 8;
    for (const uint8_t w : out.width) row += w;
    out.header_size = padded(general_size + (has_tag ? 8 : 0) + out.table.size() + row * rows.size());
  }
  out.frame_bound = out.header_size + payloads;
  return DR_OK;
}

size_t entry_size(const wire_plan& plan) {
  std::pmr::vector<uint8_t> entry;
  serialise(plan, entry);
  return entry.size();
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
  // What a row stores of itself, column by column.
  const auto stored = [&](const wire_row& row, size_t c) -> uint64_t {
    const wire_plan& plan = plans[row.plan];
    switch (c) {
      case col_info: return row.mode | (row.continues ? 4u : 0u) | row.plan << 3;
      case col_universe: return row.universe;
      case col_count: return row.count;
      case col_support: return row.mode == mode_dense ? 0 : row.support;
      default: {
        const uint32_t s = static_cast<uint32_t>(c - col_size);
        const bool absent = row.mode == mode_dense || (s == section_index && row.mode == mode_raw_index);
        return absent || plan.lists[s].fixed_size() ? 0 : row.size[s];
      }
    }
  };
  std::memset(frame, 0, layout.header_size);
  frame[0] = 'D';
  frame[1] = 'R';
  frame[2] = DR_FORMAT_VERSION;
  frame[3] =
      static_cast<uint8_t>((list ? uint32_t{DR_FRAME_LIST} : 0u) | (layout.has_tag ? uint32_t{DR_FRAME_TAG} : 0u));
  uint64_t frame_size = layout.header_size;
  for (const wire_row& row : rows) frame_size += padded(row.payload());
  if (layout.short_form) {
    const wire_row& row = rows[0];
    const wire_plan& plan = plans[0];
    frame[3] =
        static_cast<uint8_t>(frame[3] | DR_FRAME_SHORT | row.mode << 4 | (layout.short_width == 2 ? short_small : 0));
    store_bytes(frame + 12, row.universe, 3);
    uint8_t* at = frame + 15;
    const auto put = [&](size_t c) {
      store_bytes(at, stored(row, c), layout.short_width);
      at += layout.short_width;
    };
    put(col_count);
    at = std::copy(layout.table.begin(), layout.table.end(), at);
    if (plan.replaces_support()) put(col_support);
    for (uint32_t s = 0; s < section_count; ++s)
      if (plan.lists[s].count && !plan.lists[s].fixed_size()) put(col_size + s);
  } else {
    store(frame + 12, static_cast<uint32_t>(rows.size()));
    store(frame + 18, static_cast<uint16_t>(layout.table.size()));
    uint32_t widths = 0;
    for (size_t c = 0; c < layout.width.size(); ++c) widths |= static_cast<uint32_t>(layout.width[c]) << (4 * c);
    store(frame + 20, widths);
    uint8_t* at = frame + general_size;
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
    for (size_t c = 0; c < layout.width.size(); ++c)
      if (layout.width[c])
        for (const wire_row& row : rows) {
          store_bytes(at, stored(row, c), layout.width[c]);
          at += layout.width[c];
        }
  }
  store(frame + check_at, check_with_hole(frame, rows.size() == 1 ? frame_size : layout.header_size, check_at));
}

size_t write_status_frame(dr_status status, const char* message, bool has_tag, uint64_t tag, uint8_t* frame) {
  const size_t length = std::min<size_t>(std::strlen(message), 255), at = general_size + (has_tag ? 8 : 0),
               size = padded(at + length);
  std::memset(frame, 0, size);
  frame[0] = 'D';
  frame[1] = 'R';
  frame[2] = DR_FORMAT_VERSION;
  frame[3] = static_cast<uint8_t>(DR_FRAME_STATUS | (has_tag ? uint32_t{DR_FRAME_TAG} : 0u));
  frame[16] = static_cast<uint8_t>(status);
  store(frame + 18, static_cast<uint16_t>(length));
  if (has_tag) store(frame + general_size, tag);
  std::memcpy(frame + at, message, length);
  store(frame + check_at, check_with_hole(frame, size, check_at));
  return size;
}

// ---- Reading ----------------------------------------------------------------------------------------------

namespace {

dr_status truncated(dr_error& error, uint64_t size, uint64_t wanted) {
  return fail(error, DR_E_CORRUPT, "frame: %" PRIu64 " bytes, but it has at least %" PRIu64 ": cut off", size, wanted);
}

bool zeros(const uint8_t* from, const uint8_t* to) {
  return std::all_of(from, to, [](uint8_t b) { return b == 0; });
}

dr_status read_short(const uint8_t* data, size_t size, frame_view& out, dr_error& error) {
  if (out.flags & (DR_FRAME_TAG | DR_FRAME_STATUS))
    return bad(error, "a short frame has neither tag nor status", out.flags);
  if (size < 18) return truncated(error, size, 18);
  const unsigned width = data[3] & short_small ? 2 : 3;
  wire_row row;
  row.mode = data[3] >> 4 & 3;
  row.universe = load_bytes(data + 12, 3);
  row.count = load_bytes(data + 15, width);
  cursor in{data + 15 + width, data + size};
  if (const dr_status s = read_plan(in, out.plans.emplace_back(), error)) return s;
  out.entries = 1;
  const wire_plan& plan = out.plans.back();
  const uint8_t* const table_end = in.at;
  const auto take = [&](uint64_t& x) {
    if (in.left() < width) return false;
    x = load_bytes(in.at, width);
    in.at += width;
    return true;
  };
  row.support = row.mode == mode_dense ? 0 : row.count;
  if (plan.replaces_support() && !take(row.support)) return truncated(error, size, size + width);
  for (uint32_t s = 0; s < section_count; ++s)
    if (plan.lists[s].count && !plan.lists[s].fixed_size() && !take(row.size[s]))
      return truncated(error, size, size + width);
  const uint64_t used = static_cast<uint64_t>(in.at - data);
  out.header_size = padded(used);
  if (size < out.header_size) return truncated(error, size, out.header_size);
  if (!zeros(data + used, data + out.header_size)) return bad(error, "the header's padding is not zero", used);
  out.rows.push_back(row);
  out.layout.short_form = true;
  out.layout.short_width = static_cast<uint8_t>(width);
  out.layout.rows = 1;
  out.layout.table.assign(data + 15 + width, table_end);
  out.layout.header_size = out.header_size;
  return DR_OK;
}

// Entries of a plan table that rows name, of the 2^13 that they can.
class named_entries {
 public:
  static constexpr uint32_t most = 1u << 13;

  void add(uint32_t entry) { word_[entry / 64] |= uint64_t{1} << (entry % 64); }
  bool has(uint32_t entry) const { return entry < most && (word_[entry / 64] >> (entry % 64) & 1); }
  // When all are added: counts those before each word.
  uint32_t count() {
    uint32_t all = 0;
    for (size_t w = 0; w < std::size(word_); ++w) {
      before_[w] = all;
      all += static_cast<uint32_t>(std::popcount(word_[w]));
    }
    return all;
  }
  uint32_t place(uint32_t entry) const {
    const uint64_t lower = word_[entry / 64] & ((uint64_t{1} << (entry % 64)) - 1);
    return before_[entry / 64] + static_cast<uint32_t>(std::popcount(lower));
  }

 private:
  uint64_t word_[most / 64] = {};
  uint32_t before_[most / 64] = {};
};

dr_status read_general(const uint8_t* data, size_t size, frame_view& out, dr_error& error, uint64_t memory_max) {
  const bool tagged = out.flags & DR_FRAME_TAG;
  const size_t head = general_size + (tagged ? 8 : 0);
  if (size < head) return truncated(error, size, head);
  const uint64_t rows = load<uint32_t>(data + 12), table = load<uint16_t>(data + 18);
  const uint32_t widths = load<uint32_t>(data + 20);
  if (tagged) out.tag = load<uint64_t>(data + general_size);
  if (data[17] || data[3] >> 4) return bad(error, "reserved bits are set", data[17]);
  out.status = data[16];
  if (((out.flags & DR_FRAME_STATUS) != 0) != (out.status != DR_OK))
    return bad(error, "status and its flag disagree", data[16]);
  if (size < head + table) return truncated(error, size, head + table);
  if (out.status) {
    if (rows || widths || table > 255) return bad(error, "a status frame has rows", rows);
    if (out.status > DR_E_INTERNAL) return bad(error, "unknown status", data[16]);
    std::memcpy(out.message, data + head, table);
    out.header_size = padded(head + table);
    if (size < out.header_size) return truncated(error, size, out.header_size);
    return zeros(data + head + table, data + out.header_size) ? DR_OK : bad(error, "padding is not zero", table);
  }
  uint64_t width[7], row_size = rows == 1 ? 0 : 8;
  for (size_t c = 0; c < 7; ++c) {
    width[c] = widths >> (4 * c) & 15;
    if (width[c] > 8) return bad(error, "a column is wider than 8 bytes", width[c]);
    row_size += width[c];
  }
  if (widths >> 28 || width[col_info] < 1 || width[col_info] > 2 || width[col_universe] < 1)
    return bad(error, "impossible column widths", widths);
  if (rows > (size - head - table) / row_size) return truncated(error, size, head + table + rows * row_size);
  out.header_size = padded(head + table + rows * row_size);
  if (size < out.header_size) return truncated(error, size, out.header_size);
  named_entries named;
  const uint8_t* const infos = data + head + table + (rows == 1 ? 0 : 8 * rows);
  for (uint64_t i = 0; i < rows; ++i)
    named.add(
        static_cast<uint32_t>(load_bytes(infos + i * width[col_info], static_cast<unsigned>(width[col_info])) >> 3));
  const uint64_t kept = std::min<uint64_t>(named.count(), table / plan_entry_min);
  if (const uint64_t memory = frame_view::memory_of(kept, rows, table); memory > memory_max)
    return fail(error, DR_E_CAPACITY,
                "frame: its header takes %" PRIu64 " bytes; of the limit there are %" PRIu64 " left", memory,
                memory_max);
  out.plans.reserve(kept);
  cursor in{data + head, data + head + table};
  bool replaces = false;
  while (in.left()) {
    wire_plan plan;
    if (const dr_status s = read_plan(in, plan, error)) return s;
    replaces = replaces || plan.replaces_support();
    if (named.has(out.entries)) out.plans.push_back(plan);
    ++out.entries;
  }
  if (replaces != (width[col_support] != 0) && rows)
    return bad(error, "the support column is missing or in excess", width[col_support]);

  out.rows.resize(rows);
  const uint8_t* at = in.end;
  if (rows != 1) {
    out.checks.resize(rows);
    if (rows) std::memcpy(out.checks.data(), at, 8 * rows);
    at += 8 * rows;
  }
  const auto column = [&](size_t c, auto&& set) {
    if (width[c] == 0) return;
    for (wire_row& row : out.rows) {
      set(row, load_bytes(at, static_cast<unsigned>(width[c])));
      at += width[c];
    }
  };
  column(col_info, [](wire_row& row, uint64_t x) {
    row.mode = x & 3;
    row.continues = x & 4;
    row.entry = static_cast<uint32_t>(x >> 3);
  });
  for (wire_row& row : out.rows) row.plan = named.place(row.entry);
  column(col_universe, [](wire_row& row, uint64_t x) { row.universe = x; });
  column(col_count, [](wire_row& row, uint64_t x) { row.count = x; });
  if (width[col_support] == 0)
    for (wire_row& row : out.rows) row.support = row.mode == mode_dense ? 0 : row.count;
  column(col_support, [](wire_row& row, uint64_t x) { row.support = x; });
  for (size_t s = 0; s < section_count; ++s) column(col_size + s, [s](wire_row& row, uint64_t x) { row.size[s] = x; });
  out.layout.rows = rows;
  out.layout.table.assign(data + head, data + head + table);
  for (size_t c = 0; c < out.layout.width.size(); ++c) out.layout.width[c] = static_cast<uint8_t>(width[c]);
  out.layout.header_size = out.header_size - (tagged ? 8 : 0);
  return zeros(at, data + out.header_size) ? DR_OK : bad(error, "the header's padding is not zero", out.header_size);
}

// Header and rows; of the payloads only that they are there.
dr_status read_rows(const uint8_t* data, size_t available, uint64_t size, frame_view& out, dr_error& error,
                    uint64_t memory_max) {
  out.clear();
  out.data = data;
  if (available < 12) return truncated(error, available, 12);
  if (data[0] != 'D' || data[1] != 'R') return bad(error, "it does not begin with \"DR\"", data[0]);
  out.version = data[2];
  if (out.version != DR_FORMAT_VERSION)
    return fail(error, DR_E_UNSUPPORTED, "frame: format version %u; this library reads %d", out.version,
                DR_FORMAT_VERSION);
  out.flags = data[3] & known_flags;
  if (data[3] >> 7) return bad(error, "reserved flags are set", data[3]);
  const bool is_short = out.flags & DR_FRAME_SHORT;
  if (const dr_status s =
          is_short ? read_short(data, available, out, error) : read_general(data, available, out, error, memory_max))
    return s;

  uint64_t at = out.header_size;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    wire_row& row = out.rows[i];
    if (row.entry >= out.entries) return bad(error, "a row names a plan that is not there", row.entry);
    const wire_plan& plan = out.plans[row.plan];
    if (row.mode > mode_dense) return later(error, "a mode of a row that this library does not know", row.mode);
    if (row.universe > universe_max || row.count > row.universe || row.support > row.universe)
      return bad(error, "a row is larger than its universe", row.count);
    if (row.mode != mode_dense && !(plan.replaces_support() && row.mode == mode_plan) && row.support != row.count)
      return bad(error, "a support differs from the count", row.support);
    if (row.continues) {
      if (i == 0) return bad(error, "the first row continues", 0);
      const wire_plan& before = out.plans[out.rows[i - 1].plan];
      if (before.dtype != plan.dtype || before.width != plan.width)
        return bad(error, "a segment differs in type from the one before", i);
    } else {
      ++out.tensors;
    }
    row.tensor = out.tensors - 1;
    if (const dr_status s = judge_row(plan, row, i, error)) return s;
    row.offset = at;
    for (const uint64_t part : row.size) {
      if (part > size - at) return truncated(error, size, part > UINT64_MAX - at ? UINT64_MAX : at + part);
      at += part;
    }
    at = row.offset + padded(row.payload());
    if (at > size) return truncated(error, size, at);
  }
  out.frame_size = at;
  return DR_OK;
}

}  // namespace

void frame_view::keep(uint32_t first, uint32_t n) {
  std::erase_if(rows, [&](const wire_row& row) { return row.tensor < first || row.tensor - first >= n; });
  tensors = n;
}

void frame_view::clear() {
  auto table = std::move(layout.table);
  frame_view fresh;
  fresh.plans = std::move(plans);
  fresh.rows = std::move(rows);
  fresh.checks = std::move(checks);
  *this = std::move(fresh);
  layout.table = std::move(table);
  layout.table.clear();
  plans.clear();
  rows.clear();
  checks.clear();
}

dr_status read_header(const uint8_t* data, size_t available, uint64_t size, frame_view& out, dr_error& error,
                      uint64_t memory_max) {
  return read_rows(data, available, size, out, error, memory_max);
}

dr_status read_frame(const uint8_t* data, size_t size, frame_view& out, dr_error& error, uint64_t memory_max) {
  if (const dr_status s = read_rows(data, size, size, out, error, memory_max)) return s;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    const uint64_t end = out.rows[i].offset + out.rows[i].payload();
    if (!zeros(data + end, data + padded(end))) return bad(error, "padding behind a row is not zero", i);
  }
  const bool one_check = out.rows.size() == 1 || out.status;
  if (load<uint64_t>(data + check_at) != check_with_hole(data, one_check ? out.frame_size : out.header_size, check_at))
    return fail(error, DR_E_CORRUPT, "frame: its check does not match: damaged");
  for (size_t i = 0; i < out.checks.size(); ++i) {
    const wire_row& row = out.rows[i];
    if (out.checks[i] != check(data + row.offset, padded(row.payload()))) {
      fail(error, DR_E_CORRUPT, "frame: the check of row %zu does not match: damaged", i);
      error.tensor = i;
      return DR_E_CORRUPT;
    }
  }
  return DR_OK;
}

}  // namespace dr
