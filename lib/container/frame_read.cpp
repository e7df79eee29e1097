#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "container/frame.hpp"
#include "container/plan_table.hpp"
#include "core/error.hpp"
#include "primitive/check.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

constexpr uint64_t plan_entry_min = 4;  // bytes: counts, type, an id of each of two codecs
constexpr uint32_t known_flags = DR_FRAME_SHORT | DR_FRAME_TAG | DR_FRAME_LIST | DR_FRAME_STATUS;

dr_status truncated(dr_error& error, uint64_t size, uint64_t needed) {
  return fail(error, DR_E_CORRUPT, "truncated frame: %" PRIu64 " bytes given, at least %" PRIu64 " needed", size,
              needed);
}

bool zeros(const uint8_t* from, const uint8_t* to) {
  return std::all_of(from, to, [](uint8_t b) { return b == 0; });
}

const char* sentence_of(row_rule broken) {
  switch (broken) {
    case row_rule::none:
    case row_rule::mode: break;  // refuse_mode
    case row_rule::universe: return "count or support exceeds universe";
    case row_rule::support_is_count: return "support differs from count";
    case row_rule::dense_stores_nothing: return "sizes are stored, but the segment is dense";
    case row_rule::size_overflows: return "size overflows";
    case row_rule::empty_stores_nothing: return "payload or support, but count is 0";
    case row_rule::support_is_there: return "support is 0, but count is not";
    case row_rule::absent_stores_no_size: return "size stored for an absent stream";
    case row_rule::fields_fit: return "a codec refuses its wire fields";
    case row_rule::fixed_stores_no_size: return "size stored for a stream of fixed size";
    case row_rule::whole_blocks: return "elements are not whole blocks";
  }
  return "";
}

// Of a mode that is reserved the rest of the header is unknown, so a reader looks for one before it reads that.
dr_status refuse_mode(uint32_t mode, dr_error& error) {
  return mode > mode_dense ? reserved_in_frame(error, "unknown mode", mode) : DR_OK;
}

// Computes the sizes that are not stored, and checks the stored ones against their bounds.
dr_status read_sizes(const wire_plan& plan, uint32_t rule, wire_row& row, uint64_t number, dr_error& error) {
  const uint64_t row_bytes = uint64_t{plan.width} * value_size(plan.dtype);
  const auto size_of = [&](uint32_t s, uint64_t elements, uint64_t& size) {
    if (elements && row_bytes > UINT64_MAX / 16 / elements) return row_rule::size_overflows;
    const uint32_t block = plan.lists[s].block;
    if (!are_whole_blocks(elements, row.universe, block) || !are_whole_blocks(row.support, row.universe, block))
      return row_rule::whole_blocks;
    list_need need;
    if (list_needs(plan.lists[s], {row.universe, elements, plan.dtype, plan.width}, need)) return row_rule::fields_fit;
    size = need.last(plan.lists[s]);
    return row_rule::none;
  };
  const row_fault f = check_sizes(row, rule, row_bytes, size_of);
  return f ? fail(error, DR_E_CORRUPT, "frame: segment %" PRIu64 ": %s (value %" PRIu64 ")", number,
                  sentence_of(f.broken), f.what)
           : DR_OK;
}

dr_status read_short(const uint8_t* data, size_t size, frame_view& out, dr_error& error) {
  if (out.flags & (DR_FRAME_TAG | DR_FRAME_STATUS))
    return corrupt_frame(error, "a short frame has neither tag nor status", out.flags);
  wire_row row;
  row.mode = short_mode(data[frame_at::flags]);
  if (const dr_status s = refuse_mode(row.mode, error)) return s;
  if (size < 18) return truncated(error, size, 18);
  const unsigned width = data[frame_at::flags] & short_small ? 2 : 3;
  row.universe = load_bytes(data + frame_at::universe, 3);
  row.count = load_bytes(data + frame_at::count, width);
  const uint8_t* const table = data + frame_at::count + width;
  frame_cursor in{table, data + size};
  if (const dr_status s = read_plan(in, out.plans.emplace_back(), error)) return s;
  out.entries = 1;
  const uint8_t* const table_end = in.at;
  const auto take = [&](uint64_t& x) {
    if (in.left() < width) return false;
    x = load_bytes(in.at, width);
    in.at += width;
    return true;
  };
  row.support = implied_support(row.mode, row.count);
  const uint32_t stores = row_flags(out.plans.back());
  for (uint32_t c = col_support; c < frame_columns; ++c)
    if (short_stores(stores, c) && !take(c == col_support ? row.support : row.size[c - col_size]))
      return truncated(error, size, size + width);
  const uint64_t used = static_cast<uint64_t>(in.at - data);
  out.header_size = padded(used);
  if (size < out.header_size) return truncated(error, size, out.header_size);
  if (!zeros(data + used, data + out.header_size))
    return corrupt_frame(error, "the header's padding is not zero", used);
  out.rows.push_back(row);
  out.layout.short_form = true;
  out.layout.short_width = static_cast<uint8_t>(width);
  out.layout.rows = 1;
  out.layout.table.assign(table, table_end);
  out.layout.header_size = out.header_size;
  return DR_OK;
}

// The set of plan table entries that rows name, below 2^13.
class named_entries {
 public:
  static constexpr uint32_t entries_max = 1u << 13;

  void add(uint32_t entry) {
    while (words_ <= entry / 64) word_[words_++] = 0;
    word_[entry / 64] |= uint64_t{1} << (entry % 64);
  }
  bool has(uint32_t entry) const { return entry / 64 < words_ && (word_[entry / 64] >> (entry % 64) & 1); }
  // After the last addition: counts the entries before every word; returns the number of all.
  uint32_t count() {
    uint32_t all = 0;
    for (uint32_t w = 0; w < words_; ++w) {
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
  // (Frames usually name a few of the first entries, so the other words are not initialised.)
  uint32_t words_ = 0;
  uint64_t word_[entries_max / 64];
  uint32_t before_[entries_max / 64];
};

dr_status read_general(const uint8_t* data, size_t size, frame_view& out, dr_error& error, uint64_t memory_max) {
  const bool tagged = out.flags & DR_FRAME_TAG;
  const size_t head = frame_head_size(tagged);
  if (size < head) return truncated(error, size, head);
  const uint64_t rows = load<uint32_t>(data + frame_at::rows), table = load<uint16_t>(data + frame_at::table);
  const uint32_t widths = load<uint32_t>(data + frame_at::widths);
  if (tagged) out.tag = load<uint64_t>(data + frame_at::tag);
  const uint8_t reserved = data[frame_at::reserved], status = data[frame_at::status];
  if (reserved || data[frame_at::flags] >> 4) return corrupt_frame(error, "reserved bits are set", reserved);
  out.status = status;
  if (((out.flags & DR_FRAME_STATUS) != 0) != (out.status != DR_OK))
    return corrupt_frame(error, "status and its flag disagree", status);
  if (size < head + table) return truncated(error, size, head + table);
  if (out.status) {
    if (rows) return corrupt_frame(error, "a status frame has segments", rows);
    if (widths) return corrupt_frame(error, "a status frame has column widths", widths);
    if (table > status_message_max)
      return corrupt_frame(error, "the message of a status frame is longer than 255 bytes", table);
    if (!is_status(status)) return corrupt_frame(error, "unknown status", status);
    std::memcpy(out.message, data + head, table);
    hide_controls(out.message, table);
    out.header_size = padded(head + table);
    if (size < out.header_size) return truncated(error, size, out.header_size);
    return zeros(data + head + table, data + out.header_size) ? DR_OK
                                                              : corrupt_frame(error, "padding is not zero", table);
  }
  const uint64_t check_size = rows == 1 ? 0 : 8;  // of a row, in the header
  uint64_t width[frame_columns], row_size = check_size;
  for (size_t c = 0; c < frame_columns; ++c) {
    width[c] = widths >> (4 * c) & 15;
    if (width[c] > 8) return corrupt_frame(error, "a column is wider than 8 bytes", width[c]);
    row_size += width[c];
  }
  if (widths >> 28 || width[col_info] < 1 || width[col_info] > 2 || width[col_universe] < 1)
    return corrupt_frame(error, "impossible column widths", widths);
  out.header_size = padded(head + table + rows * row_size);
  if (rows > (size - head - table) / (check_size + width[col_info])) return truncated(error, size, out.header_size);
  named_entries named;
  const uint8_t* const infos = data + head + table + check_size * rows;
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t info = load_bytes(infos + i * width[col_info], static_cast<unsigned>(width[col_info]));
    if (const dr_status s = refuse_mode(mode_of(info), error)) return s;
    named.add(entry_of(info));
  }
  if (size < out.header_size) return truncated(error, size, out.header_size);
  const uint64_t entries = std::min<uint64_t>(named.count(), table / plan_entry_min);
  if (const uint64_t memory = frame_view::memory_of(entries, rows, table); memory > memory_max)
    return fail(error, DR_E_CAPACITY, "frame: the header needs %" PRIu64 " bytes; the limit leaves %" PRIu64, memory,
                memory_max);
  out.plans.reserve(entries);
  frame_cursor in{data + head, data + head + table};
  bool replaces = false;
  while (in.left()) {
    wire_plan plan;
    if (const dr_status s = read_plan(in, plan, error)) return s;
    replaces = replaces || plan.replaces_support();
    if (named.has(out.entries)) out.plans.push_back(plan);
    ++out.entries;
  }
  if (replaces != (width[col_support] != 0) && rows)
    return corrupt_frame(error, "the support column is missing or in excess", width[col_support]);

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
    row.mode = mode_of(x);
    row.continues = continues_of(x);
    row.entry = entry_of(x);
  });
  for (wire_row& row : out.rows) row.plan = named.place(row.entry);
  column(col_universe, [](wire_row& row, uint64_t x) { row.universe = x; });
  column(col_count, [](wire_row& row, uint64_t x) { row.count = x; });
  if (width[col_support] == 0)
    for (wire_row& row : out.rows) row.support = implied_support(row.mode, row.count);
  column(col_support, [](wire_row& row, uint64_t x) { row.support = x; });
  for (size_t s = 0; s < section_count; ++s) column(col_size + s, [s](wire_row& row, uint64_t x) { row.size[s] = x; });
  out.layout.rows = rows;
  out.layout.table.assign(data + head, data + head + table);
  for (size_t c = 0; c < out.layout.width.size(); ++c) out.layout.width[c] = static_cast<uint8_t>(width[c]);
  out.layout.header_size = out.header_size - (tagged ? 8 : 0);
  return zeros(at, data + out.header_size) ? DR_OK
                                           : corrupt_frame(error, "the header's padding is not zero", out.header_size);
}

// Reads header and rows; checks of the payloads only that they are present.
dr_status read_rows(const uint8_t* data, size_t available, uint64_t size, frame_view& out, dr_error& error,
                    uint64_t memory_max) {
  out.clear();
  out.data = data;
  if (available < 12) return truncated(error, available, 12);
  if (!has_magic(data)) return corrupt_frame(error, "does not begin with \"DR\"", data[0]);
  out.version = data[frame_at::version];
  if (out.version == 'P')
    return fail(error, DR_E_UNSUPPORTED,
                "frame: begins with \"DRP\", as patches of weights do; deepreduce.patch reads them");
  if (out.version != DR_FORMAT_VERSION)
    return fail(error, DR_E_UNSUPPORTED, "frame: format version %u; this library reads %d", out.version,
                DR_FORMAT_VERSION);
  const uint8_t flags = data[frame_at::flags];
  out.flags = flags & known_flags;
  if (flags >> 7) return corrupt_frame(error, "reserved flags are set", flags);
  const bool is_short = out.flags & DR_FRAME_SHORT;
  if (const dr_status s =
          is_short ? read_short(data, available, out, error) : read_general(data, available, out, error, memory_max))
    return s;

  uint64_t at = out.header_size;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    wire_row& row = out.rows[i];
    if (row.entry >= out.entries) return corrupt_frame(error, "a segment names a missing plan entry", row.entry);
    const wire_plan& plan = out.plans[row.plan];
    const uint32_t rule = row_flags(plan);
    if (const row_fault f = check_counts(row, rule)) return corrupt_frame(error, sentence_of(f.broken), f.what);
    if (row.continues) {
      if (i == 0) return corrupt_frame(error, "the first segment continues a tensor", 0);
      const wire_plan& before = out.plans[out.rows[i - 1].plan];
      if (before.dtype != plan.dtype || before.width != plan.width || before.patch != plan.patch ||
          before.tiles != plan.tiles)
        return corrupt_frame(error, "a segment differs in type from the one before", i);
      if (plan.patch && out.rows[i - 1].universe % patch_segment_rows)
        return corrupt_frame(error, "a segment of a patch does not begin at a multiple of 4096 rows", i);
    } else {
      ++out.tensors;
    }
    row.tensor = out.tensors - 1;
    if (plan.patch != out.plans[out.rows[0].plan].patch)
      return corrupt_frame(error, "some tensors are patches, and others are not", i);
    if (plan.patch && row.mode == mode_raw_index) return corrupt_frame(error, "a patch has no raw indices", row.mode);
    if (const dr_status s = read_sizes(plan, rule, row, i, error)) return s;
    row.offset = at;
    row.prefix = prefix_size(plan);
    if (row.prefix > size - at) return truncated(error, size, at + row.prefix);
    at += row.prefix;
    for (const uint64_t part : row.size) {
      if (part > size - at) return truncated(error, size, part > UINT64_MAX - at ? UINT64_MAX : at + part);
      at += part;
    }
    at = row.offset + padded(row.payload());
    if (at > size) return truncated(error, size, at);
  }
  out.frame_size = at;
  uint64_t ragged = 0;  // elements of a matrix that are not whole rows
  each_tensor(out, [&](size_t begin, size_t, uint64_t universe) {
    const uint64_t columns = out.plans[out.rows[begin].plan].tiles.columns;
    if (columns && universe % columns) ragged = universe;
  });
  return ragged ? corrupt_frame(error, "a transformed matrix does not have whole rows", ragged) : DR_OK;
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
    if (!zeros(data + end, data + padded(end))) return corrupt_frame(error, "padding after a segment is not zero", i);
  }
  const bool one_check = out.rows.size() == 1 || out.status;
  if (load<uint64_t>(data + frame_at::check) !=
      check_with_hole(data, one_check ? out.frame_size : out.header_size, frame_at::check))
    return fail(error, DR_E_CORRUPT, "frame: check does not match: damaged");
  for (size_t i = 0; i < out.checks.size(); ++i) {
    const wire_row& row = out.rows[i];
    if (out.checks[i] != check(data + row.offset, padded(row.payload()))) {
      fail(error, DR_E_CORRUPT, "frame: segment %zu: check does not match: damaged", i);
      error.tensor = row.tensor;
      return DR_E_CORRUPT;
    }
  }
  return DR_OK;
}

}  // namespace dr
