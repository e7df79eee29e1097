#include "container/plan_table.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>

#include "core/registry.hpp"

namespace dr {

static_assert(entry_stages_max == stages_max);

dr_status corrupt_frame(dr_error& error, const char* what, uint64_t value) {
  fail(error, DR_E_CORRUPT, "frame: %s (value %" PRIu64 ")", what, value);
  error.what = value;
  return error.code;
}

dr_status reserved_in_frame(dr_error& error, const char* what, uint64_t value) {
  fail(error, DR_E_UNSUPPORTED, "frame: %s (value %" PRIu64 "): reserved for a later version", what, value);
  error.what = value;
  return error.code;
}

namespace {

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

// The stage `block` of a list with blocks.
stage block_stage(const stage_list& list) {
  constexpr uint32_t index_block = 14;
  stage s{find_codec(DR_ROLE_INDEX, index_block), nullptr, {}};
  s.fields[0] = static_cast<uint64_t>(std::countr_zero(list.block));
  return s;
}

}  // namespace

void serialise(const wire_plan& plan, std::pmr::vector<uint8_t>& out) {
  const entry_head head = entry_head::of(plan.value().count, plan.order().count, listed(plan.index()), plan.dtype,
                                         plan.carries_order, plan.width, plan.patch, bool(plan.tiles));
  out.push_back(static_cast<uint8_t>(head.counts));
  out.push_back(static_cast<uint8_t>(head.type));
  if (plan.width > 1) append_varint(out, plan.width);
  if (plan.tiles) {
    out.push_back(static_cast<uint8_t>(plan.tiles.log2_size | static_cast<uint32_t>(plan.tiles.kind) << 4));
    append_varint(out, plan.tiles.columns);
  }
  for (const stage_list& list : plan.lists) {
    if (list.block > 1) put_stage(out, block_stage(list));
    for (const stage& s : list) put_stage(out, s);
  }
}

size_t entry_size(const wire_plan& plan) {
  std::pmr::vector<uint8_t> entry;
  serialise(plan, entry);
  return entry.size();
}

uint32_t row_flags(const wire_plan& plan) {
  uint32_t flags = plan.replaces_support() ? uint32_t{row_replaces_support} : 0;
  for (uint32_t s = 0; s < section_count; ++s)
    if (plan.lists[s].count)
      flags |= row_lists_section << s | (plan.lists[s].fixed_size() ? 0u : uint32_t{row_stores_size} << s);
  return flags;
}

namespace {

dr_status read_varint(frame_cursor& in, const char* what, uint64_t& x, dr_error& error) {
  if (in.varint(x)) return DR_OK;
  const bool ends = in.left() >= 10 || std::any_of(in.at, in.end, [](uint8_t byte) { return byte < 0x80; });
  return fail(error, DR_E_CORRUPT, "frame: %s in %s",
              ends ? "a varint with superfluous groups, or not below 2^64," : "truncated plan table", what);
}

dr_status read_stage(frame_cursor& in, dr_role role, stage& out, dr_error& error) {
  uint64_t head;
  if (const dr_status s = read_varint(in, "a codec id", head, error)) return s;
  const uint64_t id = head >> 1;
  out.codec = id <= 0xffff ? find_codec(role, static_cast<uint32_t>(id)) : nullptr;
  uint32_t length = 0;
  if (head & 1) {
    if (!in.u8(length) || length == 0 || length > in.left())
      return corrupt_frame(error, "a codec's fields do not fit the plan table", length);
  }
  if (!out.codec)
    return fail(error, DR_E_UNSUPPORTED, "frame: %s codec 0x%" PRIx64 " is unknown; load its plug-in", role_name(role),
                id);
  frame_cursor fields{in.at, in.at + length};
  in.at += length;
  size_t given = 0;
  for (; fields.left(); ++given) {
    uint64_t x;
    if (given == out.codec->field_count)
      return corrupt_frame(error, "a codec has more wire fields than it declares", given);
    if (const dr_status s = read_varint(fields, "a codec's fields", x, error)) return s;
    const dr_field& f = *dr_field_at(out.codec->fields, given);
    if (x < f.minimum || x > f.maximum)
      return fail(error, DR_E_CORRUPT, "frame: %s: %s = %" PRIu64 " is not in %" PRIu64 " … %" PRIu64, out.codec->name,
                  f.name, x, f.minimum, f.maximum);
    out.fields[given] = x;
  }
  if (given && out.fields[given - 1] == dr_field_at(out.codec->fields, given - 1)->fallback)
    return corrupt_frame(error, "a trailing field has its default", given - 1);
  for (size_t i = given; i < out.codec->field_count; ++i) out.fields[i] = dr_field_at(out.codec->fields, i)->fallback;
  return DR_OK;
}

dr_status read_tiles(frame_cursor& in, wire_plan& plan, dr_error& error) {
  uint32_t form = 0;
  uint64_t columns = 0;
  if (!in.u8(form)) return corrupt_frame(error, "truncated plan table in a transform", in.left());
  const uint32_t log2_size = form & 15;
  if (form >> 4 != static_cast<uint32_t>(tile_kind::cosines) || log2_size < 1 || log2_size > log2_tile_max)
    return reserved_in_frame(error, "unknown transform", form);
  if (const dr_status s = read_varint(in, "the columns of a transform", columns, error)) return s;
  if (columns > universe_max) return corrupt_frame(error, "columns of a transform are not below 2^32", columns);
  if (plan.dtype != DR_F32 || plan.width != 1)
    return corrupt_frame(error, "a transform is of single values of f32", plan.dtype);
  plan.tiles = {tile_kind::cosines, static_cast<uint8_t>(log2_size), static_cast<uint32_t>(columns)};
  return DR_OK;
}

}  // namespace

dr_status read_plan(frame_cursor& in, wire_plan& out, dr_error& error) {
  entry_head head;
  if (!in.u8(head.counts) || !in.u8(head.type)) return corrupt_frame(error, "truncated plan table", in.left());
  out.dtype = head.dtype();
  out.carries_order = head.carries_order();
  out.patch = head.is_patch();
  if (head.has_unknown_type()) return reserved_in_frame(error, "unknown value type", head.type);
  for (const uint32_t s : {section_value, section_index})
    if (head.has_reserved_count(s)) return reserved_in_frame(error, "a stream of 0, 6 or 7 codecs", head.stages(s));
  if (!out.dtype) return corrupt_frame(error, "invalid value type in the plan table", head.type);
  if (head.has_width()) {
    uint64_t width = 0;
    if (const dr_status s = read_varint(in, "a width", width, error)) return s;
    if (width < 2 || width > universe_max) return corrupt_frame(error, "width is not in 2 … 2^32 - 1", width);
    out.width = static_cast<uint32_t>(width);
  }
  if (head.has_transform())
    if (const dr_status s = read_tiles(in, out, error)) return s;
  constexpr dr_role role[section_count] = {DR_ROLE_VALUE, DR_ROLE_ORDER, DR_ROLE_INDEX};
  for (uint32_t s = 0; s < section_count; ++s) {
    stage_list& list = out.lists[s];
    for (uint32_t left = head.stages(s); left; --left) {
      stage& next = list.stages[list.count];
      if (const dr_status status = read_stage(in, list.count ? dr_role{DR_ROLE_BYTES} : role[s], next, error))
        return status;
      if (!(next.codec->traits & DR_PREFIX)) {
        ++list.count;
        continue;
      }
      if (list.block > 1 || left == 1) return corrupt_frame(error, "no index codec follows block", left - 1);
      list.block = 1u << next.fields[0];
      next = {};
    }
  }
  const bool reorders = out.value().has(DR_REORDERS);
  if ((out.value().front().codec->dtypes & DR_DTYPE_BIT(out.dtype)) == 0 || (reorders && out.width != 1))
    return corrupt_frame(error, "a value codec does not support this type or width", head.type);
  if (out.patch && (!out.value().has(DR_EXACT) || reorders || out.index().block != 1 ||
                    (out.replaces_support() && !(out.index().front().codec->forms & 1u << DR_FORM_ALL))))
    return corrupt_frame(error, "codecs that a patch does not support", head.type);
  if (!out.patch && (out.value().has(DR_NEEDS_BASE) || out.index().has(DR_NEEDS_BASE)))
    return corrupt_frame(error, "a codec needs a base, but this is not a patch", head.type);
  if (out.width != 1 && out.index().has(DR_NEEDS_BASE))
    return corrupt_frame(error, "an index codec of patches is of rows of one value", out.width);
  if (out.carries_order && !(reorders && out.index().has(DR_CARRIES_ORDER) && out.index().block == 1))
    return corrupt_frame(error, "the keys cannot carry an order", head.type);
  if ((out.order().count != 0) != (reorders && !out.carries_order))
    return corrupt_frame(error, "an order is missing or in excess", head.counts);
  return DR_OK;
}

std::string describe_list(const stage_list& list) {
  std::string text;
  const auto describe = [&](const stage& s) {
    if (!text.empty()) text += '+';
    text += plan_name(*s.codec);
    for (size_t f = 0; f < s.codec->field_count; ++f) {
      text += f ? ',' : '(';
      text += dr_field_at(s.codec->fields, f)->name;
      text += '=';
      text += std::to_string(s.fields[f]);
    }
    if (s.codec->field_count) text += ')';
  };
  if (list.block > 1) describe(block_stage(list));
  for (const stage& s : list) describe(s);
  return text;
}

}  // namespace dr
