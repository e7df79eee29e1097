// Frames that no encoder makes: a test sets every wire field and every stream, and the checks are right.
#pragma once

#include <deepreduce/deepreduce.h>

#include <cstdint>
#include <vector>

#include "fuzz/fix_check.hpp"

namespace forged {

using bytes = std::vector<uint8_t>;

struct stage {
  const dr_codec* codec;
  std::vector<uint64_t> fields;  // all that it declares, or none: the defaults
};
using list = std::vector<stage>;

struct entry {
  uint32_t dtype = DR_F32, width = 1;
  list value, order, index;
  list block;  // before the index list: none, or `block`
  bool patch = false;
};

struct row {
  size_t entry = 0;
  uint32_t mode = 0;
  uint64_t universe = 0, count = 0, support = 0;
  bytes value, order, index;  // the sections
  bool continues = false;
  uint64_t checks[2] = {0, 0};  // of a patch: of its base and of what it becomes
};

inline void put_varint(bytes& out, uint64_t x) {
  for (; x > 127; x >>= 7) out.push_back(static_cast<uint8_t>(x | 128));
  out.push_back(static_cast<uint8_t>(x));
}

inline void put_number(bytes& out, uint64_t x, unsigned size) {
  for (unsigned i = 0; i < size; ++i) out.push_back(static_cast<uint8_t>(x >> 8 * i));
}

inline void put_list(bytes& out, const list& stages) {
  for (const stage& s : stages) {
    size_t given = s.fields.size();
    while (given && s.fields[given - 1] == s.codec->fields[given - 1].fallback) --given;
    put_varint(out, uint64_t{s.codec->id} * 2 + (given > 0));
    if (!given) continue;
    bytes fields;
    for (size_t f = 0; f < given; ++f) put_varint(fields, s.fields[f]);
    out.push_back(static_cast<uint8_t>(fields.size()));
    out.insert(out.end(), fields.begin(), fields.end());
  }
}

inline void put_entry(bytes& out, const entry& e) {
  out.push_back(static_cast<uint8_t>(e.value.size() | (e.block.size() + e.index.size()) << 3 | e.order.size() << 6));
  out.push_back(static_cast<uint8_t>(e.dtype | (e.width > 1 ? 32 : 0) | (e.patch ? 64 : 0)));
  if (e.width > 1) put_varint(out, e.width);
  for (const list* l : {&e.value, &e.order, &e.block, &e.index}) put_list(out, *l);
}

inline bool fixed_size(const list& l) { return l.size() == 1 && (l[0].codec->traits & DR_FIXED_SIZE); }

// In the general form, with columns of 8 bytes.
inline bytes frame_of(const std::vector<entry>& entries, const std::vector<row>& rows) {
  bytes table;
  bool replaces = false;
  for (const entry& e : entries) {
    put_entry(table, e);
    replaces = replaces || (e.index[0].codec->traits & DR_REPLACES_SUPPORT);
  }
  bytes out = {'D', 'R', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  put_number(out, rows.size(), 4);
  put_number(out, 0, 2);
  put_number(out, table.size(), 2);
  put_number(out, replaces ? 0x8888882 : 0x8880882, 4);
  out.insert(out.end(), table.begin(), table.end());
  if (rows.size() != 1) out.resize(out.size() + 8 * rows.size());  // checks
  for (const row& r : rows) put_number(out, r.mode | (r.continues ? 4 : 0) | r.entry << 3, 2);
  for (const row& r : rows) put_number(out, r.universe, 8);
  for (const row& r : rows) put_number(out, r.count, 8);
  if (replaces)
    for (const row& r : rows) put_number(out, r.support, 8);
  const auto sizes = [&](const bytes row::*section, const list entry::*of) {
    for (const row& r : rows) {
      const list& l = entries[r.entry].*of;
      const bool keys = r.mode == 1 && section == &row::index;
      put_number(out, l.empty() || fixed_size(l) || keys || r.mode == 2 ? 0 : (r.*section).size(), 8);
    }
  };
  sizes(&row::value, &entry::value);
  sizes(&row::order, &entry::order);
  sizes(&row::index, &entry::index);
  out.resize((out.size() + 3) / 4 * 4);
  for (const row& r : rows) {
    if (entries[r.entry].patch)
      for (const uint64_t check : r.checks) put_number(out, check, 8);
    for (const bytes* section : {&r.value, &r.order, &r.index}) out.insert(out.end(), section->begin(), section->end());
    out.resize((out.size() + 3) / 4 * 4);
  }
  (void)frame_check::fix(out.data(), out.size());
  return out;
}

// What `need` says of a stream's first codec; false if its fields do not fit.
inline bool need_of(const stage& s, uint32_t dtype, uint32_t width, uint64_t universe, uint64_t count, dr_need& need) {
  std::vector<uint64_t> fields = s.fields;
  for (size_t f = fields.size(); f < s.codec->field_count; ++f)
    fields.push_back(dr_field_at(s.codec->fields, f)->fallback);
  dr_job job{.struct_size = sizeof(dr_job)};
  job.universe = universe;
  job.count_max = count;
  job.dtype = dtype;
  job.width = width;
  dr_params params{};
  params.struct_size = sizeof params;
  params.fields = fields.data();
  need = {.struct_size = sizeof need};
  return s.codec->cpu->need(&params, &job, 1, &need) == DR_OK;
}

}  // namespace forged
