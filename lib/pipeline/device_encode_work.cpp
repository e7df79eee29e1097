#include "pipeline/device_encode_work.hpp"

#include <algorithm>

#include "patch/find_changes_tile.hpp"
#include "pipeline/device_decode_work.hpp"

namespace dr {
namespace {

// Where a layout is before a call moves it.
constexpr uintptr_t nowhere_at = uintptr_t{1} << 32;
std::byte* nowhere() { return reinterpret_cast<std::byte*>(nowhere_at); }

// The scratch of a codec's call: the sum over its jobs.
uint64_t call_scratch(const stage_list& list, const stream_shape& shape, bool decode) {
  const dr_need need = need_of(list, shape);
  return round_up(decode ? need.decode_scratch : need.encode_scratch, 64);
}

template <class Bytes>
device_encode_row lay_out_row(Bytes&& bytes, const batch& b, size_t i) {
  const batch_row& r = b.rows[i];
  const unit& u = b.units[r.unit];
  const wire_plan& wire = b.wire[r.plan];
  const uint64_t row_bytes = uint64_t{u.width} * value_size(u.dtype);
  const bool all = wire.index().whole();
  device_encode_row o{};
  if (!u.whole) o.support = reinterpret_cast<uint32_t*>(bytes(4 * r.listed.count_max + slack));
  if (u.whole ? moves_values(u) : !u.sparse || u.rows > 1) o.selected = bytes(r.listed.count_max * row_bytes + slack);
  if (wire.replaces_support() && !u.whole) {
    if (!all) o.reported = reinterpret_cast<uint32_t*>(bytes(4 * r.listed.support_max + slack));
    o.sent = bytes(r.listed.support_max * row_bytes + slack);
  } else {
    o.reported = o.support;
    o.sent = o.selected;
  }
  if (u.patches() && wire.value().has(DR_NEEDS_BASE)) o.based = bytes(r.listed.count_max * row_bytes + slack);
  if (wire.value().has(DR_REORDERS)) {
    o.order = reinterpret_cast<uint32_t*>(bytes(4 * r.listed.support_max + slack));
    if (all)
      o.keys = o.order;
    else if (wire.carries_order || u.method->keeps_feedback())
      o.keys = reinterpret_cast<uint32_t*>(bytes(4 * r.listed.support_max + slack));
  }
  // (Values of 16 bits may lie where no word can: only their address tells.)
  o.plain = u.whole && copies_values(wire) && (moves_values(u) || u.dtype == DR_F32);
  if (o.plain) o.slot[section_value] = reinterpret_cast<uint8_t*>(o.sent);
  for (uint32_t s = 0; s < section_count; ++s)
    if (wire.lists[s].count && !(s == section_value && o.plain))
      o.slot[s] = reinterpret_cast<uint8_t*>(bytes(r.listed.need[s].largest() + slack));
  if (block_of(b, i)) {
    const device_select_job j = device_select_job_of(b, i);
    o.energies = reinterpret_cast<float*>(bytes(4 * j.d + slack));
    o.blocks = reinterpret_cast<uint32_t*>(bytes(4 * j.count_max + slack));
    o.kept_energies = bytes(4 * j.count_max + slack);
  }
  if (decodes_sent(b, i)) o.decoded = bytes(r.listed.support_max * row_bytes + slack);
  return o;
}

// How many elements of a unit are listed at most.
uint64_t listed_of(const unit& u) {
  return std::min({u.universe, u.selected_max, std::max<uint64_t>(1, u.dense_above)});
}

// Whether a dense row is made of what is selected again where it is read. (That of a patch is the tensor.)
bool finds_again(const unit& u) { return u.dense_above < u.universe && !u.patches(); }

// Words of the look-back of a patch's comparison.
uint64_t ticket_words_of(const batch& b, size_t i) {
  return 1 + changes_tiles(b.rows[i].universe * value_size(b.units[b.rows[i].unit].dtype));
}

}  // namespace

stream_shape device_stream_shape(const batch& b, size_t row, section s) {
  const batch_row& r = b.rows[row];
  const unit& u = b.units[r.unit];
  if (s != section_index) return {r.universe, r.listed.support_max, u.dtype, u.width};
  const stage_list& index = b.wire[r.plan].index();
  return {index.keys(r.universe), index.keys(r.listed.count_max), u.dtype, u.width};
}

bool needs_finite(const batch& b, size_t row) {
  const batch_row& r = b.rows[row];
  return b.wire[r.plan].value().has(DR_NEEDS_FINITE) && (b.units[r.unit].whole || !b.wire[r.plan].replaces_support());
}

bool is_cut_up(const unit& u) { return u.rows > 1 && !u.patches(); }

uint32_t block_of(const batch& b, size_t row) {
  const unit& u = b.units[b.rows[row].unit];
  const bound_sparsifier sparsifier = u.method->sparsifier();
  return sparsifier.how.block && !u.whole ? sparsifier.block() : 0;
}

bool moves_values(const unit& u) { return u.tensors > 1 || (u.method->keeps_feedback() && u.dtype != DR_F32); }

bool decodes_sent(const batch& b, size_t row) {
  return b.units[b.rows[row].unit].method->keeps_feedback() && !b.wire[b.rows[row].plan].value().exact();
}

bool has_selection(const batch& b, size_t row) {
  const unit& u = b.units[b.rows[row].unit];
  return u.whole || row == u.first_row;
}

device_select_job device_select_job_of(const batch& b, size_t row) {
  const batch_row& r = b.rows[row];
  const unit& u = b.units[r.unit];
  const plan& p = *u.method;
  device_select_job j{};
  j.d = u.whole ? r.universe : u.universe;
  j.dtype = u.dtype;
  j.width = u.width;
  j.count_max = u.whole || u.rows == 1 ? r.listed.count_max : listed_of(u);
  j.dense_above = u.dense_above;
  for (uint32_t i = u.first_tensor; u.tensors > 1 && i < u.first_tensor + u.tensors; ++i)
    j.flat_tiles += flat_tiles_of(b.shapes[i].universe, u.dtype);
  if (u.sparse) {
    j.kind = device_select_job::adopt;
    j.index_dtype = b.shapes[u.first_tensor].index_dtype;
  } else if (u.whole) {
    j.kind = device_select_job::whole;
  } else {
    const bound_sparsifier sparsifier = p.sparsifier();
    sparsifier.how.on_device(sparsifier.params, u.universe, j);
  }
  // (Those of segments are looked at when they are cut.)
  j.needs_finite = needs_finite(b, row) && (u.whole || u.rows == 1);
  if (p.keeps_feedback()) {
    static float anything;
    j.residual = &anything;  // any pointer: feedback exists
    const feedback_weights weights = p.feedback_rule().weights();
    j.beta = weights.beta;
    j.gamma = weights.gamma;
  }
  if (j.block) {  // what reads the tensor, and what lists its elements, comes before and after
    j.d = ceil_div(j.d, j.block);
    j.count_max = ceil_div(j.count_max, j.block);
    j.dtype = DR_F32;
    j.residual = nullptr;
    j.flat_tiles = 0;
    j.needs_finite = false;
  }
  j.solved = j.kind == device_select_job::largest && j.d <= solve_most(b.has_large);
  return j;
}

device_encode_layout device_encode_layout::of(const batch& b) {
  device_encode_layout out;
  device_encode_work& w = out.work;
  arena memory;
  const size_t n = b.rows.size();
  const bool replaces = std::any_of(b.wire.begin(), b.wire.end(),
                                    [](const wire_plan& p) { return p.replaces_support() && !p.index().whole(); });
  const auto bytes = [&](uint64_t size) {
    const uint64_t offset = memory.used();
    memory.allocate<std::byte>(size);
    return nowhere() + offset;
  };
  w.zero = nowhere();
  out.units.assign(b.units.size(), {});
  w.rows = reinterpret_cast<device_row*>(bytes(n * sizeof(device_row)));
  for (size_t i = 0; i < b.units.size(); ++i)
    if (is_cut_up(b.units[i])) out.units[i].row = reinterpret_cast<device_row*>(bytes(sizeof(device_row)));
  w.replaced = reinterpret_cast<replaced_row*>(bytes(replaces ? n * sizeof(replaced_row) : 0));
  bool blocks = false;
  for (size_t i = 0; i < n; ++i) blocks = blocks || block_of(b, i);
  w.block_rows = blocks ? reinterpret_cast<device_row*>(bytes(n * sizeof(device_row))) : nullptr;
  w.state = reinterpret_cast<pack_state*>(bytes(sizeof(pack_state)));
  w.check = reinterpret_cast<uint64_t*>(bytes(n * 8));
  w.patched = b.patches() ? reinterpret_cast<uint64_t*>(bytes(2 * n * sizeof(uint64_t))) : nullptr;
  uint64_t ticket_words = 0;
  for (size_t i = 0; i < n && b.patches(); ++i) ticket_words += ticket_words_of(b, i);
  auto* ticket = reinterpret_cast<uint64_t*>(bytes(ticket_words * sizeof(uint64_t)));
  device_select_need selects{};
  for (size_t i = 0; i < n && !b.patches(); ++i) {
    if (!has_selection(b, i)) continue;
    const device_select_need need = select_need(device_select_job_of(b, i));
    selects.zeroed += round_up(need.zeroed, 64);
    selects.plain += round_up(need.plain, 64);
  }
  w.select_zeroed = bytes(selects.zeroed);
  // Every call of a codec has scratch of its own, because all scratch is zeroed at once.
  for (uint32_t p = 0; p < b.wire.size(); ++p)
    for (const section s : {section_index, section_value, section_order}) {
      uint64_t encodes = 0, decodes = 0;
      for (size_t i = 0; i < n; ++i)
        if (b.rows[i].plan == p) {
          encodes += call_scratch(b.wire[p].lists[s], device_stream_shape(b, i, s), false);
          if (s == section_value && decodes_sent(b, i))
            decodes += call_scratch(b.wire[p].lists[s], device_stream_shape(b, i, s), true);
        }
      out.scratch.push_back({bytes(encodes), encodes});
      out.scratch.push_back({bytes(decodes), decodes});
    }
  w.zero_size = memory.used();
  w.select_plain = bytes(selects.plain);
  uint64_t head = 64 + std::max(b.layout[0].table.size(), b.layout[0].short_form ? b.layout[0].header_size : 0);
  const uint64_t tables = (n + 1) * sizeof(pack_row) + round_up(head, 16);
  uint64_t blob_size = tables;
  for (size_t i = 0; i < n; ++i) {
    const unit& u = b.units[b.rows[i].unit];
    if (u.tensors > 1) blob_size += flat_table_size(u.tensors);
    if (finds_again(u)) blob_size += sizeof(unlisted_source);
  }
  w.keys_at = blob_size;
  w.blob = bytes(blob_size + round_up(n * sizeof(row_keys), 16));
  w.keys = reinterpret_cast<row_keys*>(w.blob + w.keys_at);
  for (size_t i = 0; i < b.units.size(); ++i) {
    const unit& u = b.units[i];
    if (!is_cut_up(u) || u.whole) continue;
    out.units[i].support = reinterpret_cast<uint32_t*>(bytes(4 * listed_of(u) + slack));
    if (!u.sparse) out.units[i].selected = bytes(listed_of(u) * u.width * value_size(u.dtype) + slack);
  }
  uint64_t table_at = tables;
  for (size_t i = 0; i < n; ++i) {
    device_encode_row o = lay_out_row(bytes, b, i);
    if (b.patches()) {
      o.ticket = ticket;
      ticket += ticket_words_of(b, i);
    }
    const unit& u = b.units[b.rows[i].unit];
    if (u.tensors > 1) {
      o.flat_at = table_at;
      o.flat = reinterpret_cast<const flat_table*>(w.blob + table_at);
      table_at += flat_table_size(u.tensors);
    }
    if (finds_again(u)) {
      o.unlisted_at = table_at;
      table_at += sizeof(unlisted_source);
    }
    out.rows.push_back(o);
  }
  out.size = memory.used();
  return out;
}

void device_encode_layout::place(std::byte* workspace, device_encode_work& work_at,
                                 std::vector<device_encode_row>& rows_at, std::vector<codec_scratch>& scratch_at,
                                 std::vector<device_encode_unit>& units_at) const {
  const auto move = [&](auto&... pointers) {
    const auto one = [&]<class T>(T*& p) {
      if (p) p = reinterpret_cast<T*>(workspace + (reinterpret_cast<uintptr_t>(p) - nowhere_at));
    };
    (one(pointers), ...);
  };
  work_at = work;
  device_encode_work& w = work_at;
  move(w.zero, w.rows, w.replaced, w.block_rows, w.state, w.check, w.patched, w.select_zeroed, w.select_plain, w.blob,
       w.keys);
  rows_at.assign(rows.begin(), rows.end());
  for (device_encode_row& o : rows_at) {
    move(o.support, o.reported, o.order, o.keys, o.selected, o.sent, o.decoded, o.based, o.ticket, o.flat, o.energies,
         o.blocks, o.kept_energies);
    for (uint8_t*& slot : o.slot) move(slot);
  }
  scratch_at.assign(scratch.begin(), scratch.end());
  for (codec_scratch& c : scratch_at) move(c.at);
  units_at.assign(units.begin(), units.end());
  for (device_encode_unit& u : units_at) move(u.support, u.selected, u.row);
}

void describe_row(const batch& b, size_t i, const device_encode_row& o, pack_row& p) {
  const batch_row& r = b.rows[i];
  const unit& u = b.units[r.unit];
  for (uint32_t s = 0; s < section_count; ++s) p.slot[s] = o.slot[s];
  p.support = o.support;
  p.selected = reinterpret_cast<const uint8_t*>(o.selected);
  p.reported = o.reported;
  p.sent = reinterpret_cast<const uint8_t*>(o.sent);
  p.universe = static_cast<uint32_t>(r.universe);
  p.width = u.width;
  if (o.unlisted_at) p.unlisted = static_cast<uint32_t>((o.unlisted_at - i * sizeof p) / 16);
  p.plan = static_cast<uint16_t>(r.plan & 0x7fff);
  p.continues = r.continues;
  p.dtype = static_cast<uint8_t>(u.dtype);
  p.flags = static_cast<uint8_t>(row_flags(b.wire[r.plan]));
  p.tensor = u.first_tensor;
  if (u.tensors > 1) {
    p.tensor = static_cast<uint32_t>(o.flat_at / 16);
    p.flags |= pack_bucket;
  }
}

}  // namespace dr
