// The rules of a frame's header, for host and device: positions of fields, contents of a row, and corruption
// (FORMAT.md is normative).
#pragma once

#include <cstdint>

#include "primitive/check.hpp"
#include "primitive/row_mode.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// ---- Positions --------------------------------------------------------------------------------------------

namespace frame_at {
inline constexpr uint32_t version = 2, flags = 3, check = 4;
inline constexpr uint32_t rows = 12, status = 16, reserved = 17, table = 18, widths = 20, tag = 24;  // general form
inline constexpr uint32_t universe = 12, count = 15;  // short form; the plan's entry follows the count
}  // namespace frame_at
inline constexpr uint32_t frame_check_size = 8, frame_tag_size = 8;
inline constexpr uint32_t short_small = 1u << 6;      // flag of a short frame: counts and sizes have 2 bytes
inline constexpr uint32_t status_message_max = 255;   // bytes
inline constexpr uint64_t universe_max = 0xffffffff;  // of a row
inline constexpr uint32_t entry_stages_max = 5;       // of a value or an index list
inline constexpr uint32_t patch_checks_size = 16;     // before the sections of a segment of a patch: base, result
inline constexpr uint32_t patch_segment_rows = 4096;  // a segment but the last has a multiple of them

DR_HD constexpr bool has_magic(const uint8_t* frame) { return frame[0] == 'D' && frame[1] == 'R'; }
DR_HD inline void put_prologue(uint8_t* frame, uint32_t flags) {
  frame[0] = 'D';
  frame[1] = 'R';
  frame[frame_at::version] = DR_FORMAT_VERSION;
  frame[frame_at::flags] = static_cast<uint8_t>(flags);
}
DR_HD constexpr uint64_t padded(uint64_t size) { return (size + 3) & ~uint64_t{3}; }
// The flags of a short frame include the mode.
DR_HD constexpr uint32_t short_mode(uint32_t flags) { return flags >> 4 & 3; }
DR_HD constexpr uint32_t short_mode_flags(uint32_t mode) { return mode << 4; }
// Bytes before the plan table, general form.
DR_HD constexpr uint64_t frame_head_size(bool tagged) { return frame_at::tag + (tagged ? frame_tag_size : 0); }

// The columns of a row, in wire order; in the short form those from `col_support` on follow the plan's entry.
enum frame_column : uint32_t { col_info, col_universe, col_count, col_support, col_size, frame_columns = 7 };

// Row info: mode, whether it continues the previous row's tensor, entry of the plan table.
DR_HD constexpr uint32_t row_info(uint32_t mode, bool continues, uint32_t entry) {
  return mode | (continues ? 4u : 0u) | entry << 3;
}
DR_HD constexpr uint32_t mode_of(uint64_t info) { return info & 3; }
DR_HD constexpr bool continues_of(uint64_t info) { return info & 4; }
DR_HD constexpr uint32_t entry_of(uint64_t info) { return static_cast<uint32_t>(info >> 3); }

// ---- Plans ------------------------------------------------------------------------------------------------

// The first two bytes of a plan's entry. Some values are reserved for later versions: UNSUPPORTED, not CORRUPT.
struct entry_head {
  uint32_t counts, type;

  DR_HD static constexpr entry_head of(uint32_t values, uint32_t orders, uint32_t indices, uint32_t dtype,
                                       bool carries_order, uint32_t width, bool patch = false, bool transform = false) {
    return {values | indices << 3 | orders << 6,
            dtype | (carries_order ? 16u : 0u) | (width > 1 ? 32u : 0u) | (patch ? 64u : 0u) | (transform ? 128u : 0u)};
  }
  DR_HD constexpr uint32_t stages(uint32_t s) const {
    return s == section_value ? counts & 7 : s == section_index ? counts >> 3 & 7 : counts >> 6;
  }
  DR_HD constexpr uint32_t dtype() const { return type & 15; }
  DR_HD constexpr bool carries_order() const { return type & 16; }
  DR_HD constexpr bool has_width() const { return type & 32; }
  DR_HD constexpr bool is_patch() const { return type & 64; }
  constexpr bool has_transform() const { return type & 128; }
  // (To a batch of gradients on a device patches and transforms are reserved types.)
  DR_HD constexpr bool has_reserved_type() const { return dtype() > DR_BF16 || type >> 6; }
  constexpr bool has_unknown_type() const {
    return is_patch() ? has_transform() || (dtype() && !is_word_type(dtype())) : dtype() > DR_BF16;
  }
  DR_HD constexpr bool has_reserved_count(uint32_t s) const { return stages(s) == 0 || stages(s) > entry_stages_max; }
};

// The rules that a plan sets for its rows.
enum row_flag : uint32_t {
  row_lists_section = 1,          // << section
  row_stores_size = 8,            // << section: the header stores its size
  row_replaces_support = 1 << 6,  // stores it, too
};
// Whether a short header has a column from `col_support` on.
DR_HD constexpr bool short_stores(uint32_t flags, uint32_t c) {
  return c == col_support ? flags & row_replaces_support : flags & row_stores_size << (c - col_size);
}

// ---- Rows -------------------------------------------------------------------------------------------------

// A row in a header. (The host's wire_row has fields of the same names.)
struct row_columns {
  uint32_t mode;
  uint64_t universe, count, support, size[section_count];

  DR_HD uint64_t payload() const { return size[0] + size[1] + size[2]; }
};

DR_HD constexpr bool is_raw_index(uint32_t mode, uint32_t s) { return s == section_index && mode == mode_raw_index; }
DR_HD constexpr uint64_t raw_index_size(uint64_t count) { return 4 * count; }
// The size of a section. (An array index would force the row into a GPU's local memory.)
template <class Row>
DR_HD uint64_t section_size(const Row& row, uint32_t s) {
  return s == section_value   ? row.size[section_value]
         : s == section_order ? row.size[section_order]
                              : row.size[section_index];
}
// The number of elements of a section.
template <class Row>
DR_HD uint64_t section_elements(const Row& row, uint32_t s) {
  return s == section_index ? row.count : row.support;
}
// The support of a row without a column for it.
DR_HD constexpr uint64_t implied_support(uint32_t mode, uint64_t count) { return mode == mode_dense ? 0 : count; }

// The value of a row in a column from `col_universe` on.
template <class Row>
DR_HD uint64_t stored_column(const Row& row, uint32_t flags, uint32_t c) {
  if (c == col_universe) return row.universe;
  if (c == col_count) return row.count;
  if (c == col_support) return row.mode == mode_dense ? 0 : row.support;
  const uint32_t s = c - col_size;
  const bool stored = flags & row_stores_size << s && row.mode != mode_dense && !is_raw_index(row.mode, s);
  return stored ? section_size(row, s) : 0;
}

enum class row_rule : uint32_t {
  none,
  mode,  // reserved for a later version: UNSUPPORTED
  universe,
  support_is_count,
  dense_stores_nothing,
  size_overflows,
  empty_stores_nothing,
  support_is_there,
  absent_stores_no_size,
  fields_fit,
  fixed_stores_no_size,
  whole_blocks
};
// The first rule that a row breaks, and the value at fault.
struct row_fault {
  row_rule broken;
  uint64_t what;
  DR_HD explicit operator bool() const { return broken != row_rule::none; }
};

// Checks mode, universe, count and stated support.
template <class Row>
DR_HD row_fault check_counts(const Row& row, uint32_t flags) {
  if (row.mode > mode_dense) return {row_rule::mode, row.mode};
  if (row.universe > universe_max || row.count > row.universe || row.support > row.universe)
    return {row_rule::universe, row.count};
  const bool replaced = flags & row_replaces_support && row.mode == mode_plan;
  if (row.mode != mode_dense && !replaced && row.support != row.count) return {row_rule::support_is_count, row.support};
  return {row_rule::none, 0};
}

template <class Row>
DR_HD bool stores_sizes(const Row& row) {
  return (row.size[0] | row.size[1] | row.size[2]) != 0;
}
// Whether a · b overflows, a < 2^32.
DR_HD constexpr bool product_overflows(uint64_t a, uint64_t b) {
  return (a * (b >> 32) + (a * (b & 0xffffffff) >> 32)) >> 32 != 0;
}

// Validates the fields of a row, and sets the support and the sizes that follow from the header. row_bytes: width ·
// size of the type. size_of(section, elements, size) computes the size of a section that stores none; it returns
// row_rule::none, size_overflows, fields_fit or whole_blocks.
template <class Row, class SizeOf>
DR_HD row_fault check_sizes(Row& row, uint32_t flags, uint64_t row_bytes, SizeOf&& size_of) {
  if (row.mode == mode_dense) {
    if (stores_sizes(row) || row.support) return {row_rule::dense_stores_nothing, row.payload()};
    row.support = row.universe;
    row.size[section_value] = row.universe * row_bytes;
    return {product_overflows(row.universe, row_bytes) ? row_rule::size_overflows : row_rule::none, row.universe};
  }
  if (row.count == 0)
    return {stores_sizes(row) || row.support ? row_rule::empty_stores_nothing : row_rule::none, row.payload()};
  if (row.support == 0) return {row_rule::support_is_there, row.count};
#pragma unroll
  for (uint32_t s = 0; s < section_count; ++s) {
    uint64_t size = raw_index_size(row.count);
    const bool raw = is_raw_index(row.mode, s), listed = flags & row_lists_section << s;
    if (raw || !listed) {
      if (row.size[s]) return {row_rule::absent_stores_no_size, row.size[s]};
      if (raw) row.size[s] = size;
      continue;
    }
    const uint64_t n = section_elements(row, s);
    if (const row_rule broken = size_of(s, n, size); broken != row_rule::none)
      return {broken, broken == row_rule::fields_fit ? s : n};
    if (flags & row_stores_size << s) continue;
    if (row.size[s]) return {row_rule::fixed_stores_no_size, row.size[s]};
    row.size[s] = size;
  }
  return {row_rule::none, 0};
}

// ---- Status frames ----------------------------------------------------------------------------------------

DR_HD constexpr bool is_status(uint32_t status) { return status >= DR_E_ARGUMENT && status <= DR_E_INTERNAL; }
// A status frame has no rows and no columns, and a message in place of the plan table.
DR_HD constexpr bool is_status_head(uint32_t rows, uint32_t widths, uint32_t message) {
  return rows == 0 && widths == 0 && message <= status_message_max;
}

// The check of a frame of one chunk, whose i-th word is word(i).
template <class F>
DR_HD uint64_t short_check(uint64_t size, F&& word) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < size / 4; ++i) {
    const bool hole = 4 * i >= frame_at::check && 4 * i < frame_at::check + frame_check_size;
    sum += (uint64_t{hole ? 0 : word(i)} + 1) * check_factor(static_cast<uint32_t>(i));
  }
  return mix64(sum);
}

// Writes a status frame; returns its size. `length`: of the message, at most status_message_max bytes.
DR_HD inline uint64_t put_status_frame(uint32_t status, const char* message, uint64_t length, bool tagged, uint64_t tag,
                                       uint8_t* frame) {
  const uint64_t at = frame_head_size(tagged), size = padded(at + length);
  const auto put = [&](uint64_t to, uint64_t x, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) frame[to + i] = static_cast<uint8_t>(x >> (8 * i));
  };
  for (uint64_t i = 0; i < size; ++i) frame[i] = 0;
  put_prologue(frame, DR_FRAME_STATUS | (tagged ? uint32_t{DR_FRAME_TAG} : 0u));
  frame[frame_at::status] = static_cast<uint8_t>(status);
  put(frame_at::table, length, 2);
  if (tagged) put(frame_at::tag, tag, frame_tag_size);
  for (uint64_t i = 0; i < length; ++i) frame[at + i] = static_cast<uint8_t>(message[i]);
  const auto word = [&](uint64_t i) {
    uint32_t x = 0;
    for (unsigned k = 0; k < 4; ++k) x |= uint32_t{frame[4 * i + k]} << (8 * k);
    return x;
  };
  put(frame_at::check, short_check(size, word), frame_check_size);
  return size;
}

}  // namespace dr
