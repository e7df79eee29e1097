#include "pipeline/row_bounds.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>

#include "patch/base_check.hpp"
#include "pipeline/tensor_check.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

wire_plan wire_of(const plan& p, const unit& u) {
  wire_plan out;
  out.dtype = u.dtype;
  out.patch = u.patches();
  out.width = u.width;
  out.tiles = u.tiles;
  out.carries_order = p.carries_order();
  out.lists[section_index].block = std::max(1u, p.block);
  const std::vector<bound_stage>* lists[section_count] = {&p.value, &p.order, &p.index};
  for (uint32_t s = 0; s < section_count; ++s)
    for (const bound_stage& b : *lists[s]) {
      stage& stage = out.lists[s].stages[out.lists[s].count++];
      stage.codec = b.codec;
      stage.values = b.values.data();
    }
  return out;
}

bool same_on_wire(const wire_plan& a, const wire_plan& b) {
  if (a.dtype != b.dtype || a.width != b.width || a.carries_order != b.carries_order || a.patch != b.patch ||
      a.tiles != b.tiles)
    return false;
  for (uint32_t s = 0; s < section_count; ++s) {
    if (a.lists[s].count != b.lists[s].count || a.lists[s].block != b.lists[s].block) return false;
    for (uint32_t i = 0; i < a.lists[s].count; ++i) {
      const stage &x = a.lists[s].stages[i], &y = b.lists[s].stages[i];
      // Parameters that are not sent distinguish plans, too: such plans are coded separately.
      if (x.codec != y.codec || x.values != y.values || x.fields != y.fields) return false;
    }
  }
  return true;
}

// The job for which wire fields are resolved: a tensor, or, so that all its segments have the same fields, one segment
// with its share of the selected rows. (One segment may have all selected rows, but fields that depend on density use
// the tensor's.)
struct typical_row {
  uint64_t universe, count;
};
typical_row typical_of(const unit& u, uint64_t segment) {
  if (u.universe <= segment) return {u.universe, std::min(u.universe, u.selected_max)};
  const double density = static_cast<double>(std::min(u.universe, u.selected_max)) / static_cast<double>(u.universe);
  return {segment, std::min(segment, static_cast<uint64_t>(std::ceil(density * static_cast<double>(segment))))};
}

// Resolves the wire fields of all codecs.
dr_status resolve(wire_plan& wire, const typical_row& row, uint64_t tensor, dr_error& error) {
  for (stage_list& list : wire.lists)
    for (uint32_t i = 0; i < list.count; ++i) {
      stage& s = list.stages[i];
      if (!s.codec->cpu->resolve) continue;
      const dr_job job = shape_job({list.keys(row.universe), list.keys(row.count), wire.dtype, wire.width});
      dr_params params = s.params();
      if (s.codec->role == DR_ROLE_VALUE) params.beside = wire.lists[section_index].front().codec->traits;
      dr_fault fault = no_fault();
      if (s.codec->cpu->resolve(&params, &job, s.fields.data(), &fault)) {
        if (fault.code == DR_OK) fault.code = DR_E_ARGUMENT;
        return fail(error, fault, tensor, s.codec->name);
      }
    }
  return DR_OK;
}

// Whether rows may be sent dense because too many elements are selected, even if their codes are shorter.
bool may_go_dense(const unit& u) { return u.dense_above < u.universe; }

bool may_go_raw(const wire_plan& wire, const list_need& index) {
  return wire.replaces_support() && !index.tell_suffices;
}

// The need of a section for `count` elements.
dr_status bound_section(const unit& u, const wire_plan& wire, uint64_t universe, section s, uint64_t count,
                        list_need& need, dr_error& error) {
  if (wire.lists[s].count == 0) return DR_OK;
  if (list_needs(wire.lists[s], {universe, count, wire.dtype, wire.width}, need))
    return bad_tensor(error, u.first_tensor, DR_E_ARGUMENT, count,
                      "%s does not support this tensor (count %" PRIu64 ", universe %" PRIu64 ", width %u)",
                      wire.lists[s].front().codec->name, count, universe, wire.width);
  return DR_OK;
}

// The bounds of a row of which up to out.count_max elements are listed.
dr_status bound_lists(const unit& u, const wire_plan& wire, uint64_t universe, listed_bound& out, dr_error& error) {
  const auto needs = [&](section s, uint64_t count) {
    return bound_section(u, wire, universe, s, count, out.need[s], error);
  };
  if (const dr_status s = needs(section_index, out.count_max)) return s;
  const list_need& index = out.need[section_index];
  out.support_max = wire.replaces_support()
                        ? std::clamp(index.tell, may_go_raw(wire, index) ? out.count_max : 0, universe)
                        : out.count_max;
  if (const dr_status s = needs(section_value, out.support_max)) return s;
  return needs(section_order, out.support_max);
}

// The bounds of a row's sections, and of its payload: the maxima over the modes that can occur.
dr_status bound_row(const unit& u, const wire_plan& wire, batch_row& row, dr_error& error) {
  const auto size = [&](section s, const list_need& need) {
    return wire.lists[s].count ? need.last(wire.lists[s]) : 0;
  };
  row.listed = {.count_max = row.count_max, .support_max = 0, .payload = 0, .need = {}};
  if (const dr_status s = bound_lists(u, wire, row.universe, row.listed, error)) return s;
  row.support_max = row.listed.support_max;
  std::copy_n(row.listed.need, section_count, row.need);
  const list_need &index = row.need[section_index], &value = row.need[section_value], &order = row.need[section_order];
  if (may_go_dense(u)) {
    // (At least 1: no codec bounds nothing.)
    listed_bound few{.count_max = std::min(row.count_max, std::max<uint64_t>(1, u.dense_above)),
                     .support_max = 0,
                     .payload = 0,
                     .need = {}};
    if (const dr_status s = bound_lists(u, wire, row.universe, few, error)) return s;
    // (Whether keys are sent raw depends on the bound of the support.)
    if (!may_go_raw(wire, few.need[section_index])) {
      row.listed = few;
      for (const section s : {section_value, section_order, section_index}) row.listed.payload += size(s, few.need[s]);
    }
  }

  row_bound& b = row.bound;
  b = {row.plan,
       row.universe,
       row.count_max,
       row.support_max,
       size(section_value, value),
       size(section_order, order),
       size(section_index, index),
       0};
  b.payload = b.value + b.order + b.index;
  if (may_go_raw(wire, index)) {
    // For as many values as keys.
    list_need fewer_values, fewer_orders;
    for (const auto& [s, need] : {std::pair(section_value, &fewer_values), std::pair(section_order, &fewer_orders)})
      if (const dr_status status = bound_section(u, wire, row.universe, s, row.count_max, *need, error)) return status;
    b.payload =
        std::max(b.payload, size(section_value, fewer_values) + size(section_order, fewer_orders) + 4 * row.count_max);
  }
  // A row whose streams exceed the dense row is sent dense.
  const uint64_t dense = row.universe * wire.width * value_size(wire.dtype);
  if (!row.listed.payload) row.listed.payload = b.payload;
  row.listed.payload = prefix_size(wire) + std::min(dense, row.listed.payload);
  b.payload = prefix_size(wire) + (may_go_dense(u) ? dense : std::min(dense, b.payload));
  return DR_OK;
}

uint32_t find_or_add(std::vector<wire_plan>& all, const wire_plan& wire) {
  const auto same = std::find_if(all.begin(), all.end(), [&](const wire_plan& w) { return same_on_wire(w, wire); });
  const auto place = static_cast<uint32_t>(same - all.begin());
  if (same == all.end()) all.push_back(wire);
  return place;
}

void grow(list_need& all, const list_need& one) {
  for (uint32_t s = 0; s < stages_max; ++s) all.payload[s] = std::max(all.payload[s], one.payload[s]);
  all.encode_scratch = std::max(all.encode_scratch, one.encode_scratch);
  all.decode_scratch = std::max(all.decode_scratch, one.decode_scratch);
}

// Whether an index list may be the shortest of auto's candidates, one of which has at most `least` bytes. A codec of
// fixed size has at least the bytes of one index: so a bitmap of a large universe needs no memory.
bool may_be_shortest(const wire_plan& wire, uint64_t universe, uint64_t least) {
  list_need one;
  return !wire.index().fixed_size() || list_needs(wire.index(), {universe, 1, wire.dtype, wire.width}, one) ||
         one.last(wire.index()) <= least;
}

// The bound of the payload of a row for which auto chooses among these. The chosen index codec writes no more than any
// other candidate, and none exceeds its bound. The chosen value codec writes no more than any other that meets the
// error, which an exact codec that accepts all values always does.
uint64_t bound_chosen(std::span<const row_choice> choices, std::span<const wire_plan> plans) {
  if (choices.size() == 1) return choices[0].bound.payload;
  uint64_t index = ~uint64_t{0}, value = ~uint64_t{0}, longest = 0;
  for (const row_choice& c : choices) {
    const stage_list& values = plans[c.plan].value();
    index = std::min(index, c.bound.index);
    longest = std::max(longest, c.bound.value);
    if (values.exact() && values.total()) value = std::min(value, c.bound.value);
  }
  return prefix_size(plans[choices[0].plan]) + index + std::min(value, longest);
}

// Lists all choices of auto for a row whose own plan has been bound.
dr_status bound_choices(const unit& u, const typical_row& typical, batch& out, batch_row& row, dr_error& error) {
  const plan& method = *u.method;
  std::vector<const bound_stage*> indices, values;
  // (Codecs that read a base code single words, not wider rows.)
  for (const bound_stage& i : method.index_choices)
    if (u.width == 1 || !(i.codec->traits & DR_NEEDS_BASE)) indices.push_back(&i);
  if (indices.empty()) indices.push_back(&method.index[0]);
  for (const bound_stage& v : method.value_choices)
    if (v.codec->dtypes & DR_DTYPE_BIT(u.dtype)) values.push_back(&v);
  if (values.empty()) values.push_back(&method.value[0]);
  row.value_choices = static_cast<uint32_t>(values.size());
  if (!method.block) row.block_choices = 1 + std::countr_zero(block_max);
  const auto put = [](stage_list& list, const bound_stage& b) {
    list.count = 1;
    list.stages[0] = stage{b.codec, b.values.data(), {}};
  };
  const batch_row base = row;
  const auto bound_choice = [&](uint32_t block, const bound_stage* index, const bound_stage* value) -> dr_status {
    wire_plan wire = wire_of(method, u);
    wire.lists[section_index].block = block;
    if (!method.index_choices.empty()) put(wire.lists[section_index], *index);
    if (!method.value_choices.empty()) put(wire.lists[section_value], *value);
    batch_row one = base;
    if (const dr_status s = resolve(wire, typical, u.first_tensor, error)) return s;
    one.plan = find_or_add(out.wire, wire);
    if (const dr_status s = bound_row(u, wire, one, error)) return s;
    row_choice& choice = row.choices.emplace_back(row_choice{one.plan, {}, one.bound, true});
    std::copy_n(one.need, section_count, choice.need);
    for (const section s : {section_value, section_order}) grow(row.need[s], one.need[s]);
    row.support_max = std::max(row.support_max, one.support_max);
    return DR_OK;
  };
  const uint64_t dense = row.universe * u.width * value_size(u.dtype);
  uint64_t payload = may_go_dense(u) ? dense : 0;
  for (uint32_t k = 0; k < row.block_choices; ++k) {
    const size_t first = row.choices.size();
    for (const bound_stage* index : indices)
      for (const bound_stage* value : values)
        if (const dr_status s = bound_choice(method.block ? method.block : 1u << k, index, value)) return s;
    const auto choices = std::span(row.choices).subspan(first);
    payload = std::max(payload, bound_chosen(choices, out.wire));
    uint64_t least = ~uint64_t{0};
    for (const row_choice& c : choices) least = std::min(least, c.bound.index);
    for (row_choice& c : choices) {
      list_need need = c.need[section_index];
      c.may_be_shortest = may_be_shortest(out.wire[c.plan], row.universe, least);
      if (!c.may_be_shortest) need.payload = {};
      grow(row.need[section_index], need);
    }
  }
  row.listed.count_max = row.count_max;
  row.listed.support_max = row.support_max;
  row.plan = row.choices[0].plan;
  row.bound.payload = row.listed.payload = std::min(prefix_size(out.wire[row.plan]) + dense, payload);
  return DR_OK;
}

}  // namespace

dr_status add_unit_rows(batch& out, unit& u, dr_error& error) {
  // Whole blocks, so that the cut does not change the tensor's blocks; for a patch, whole chunks of the base's check.
  const uint64_t block = u.patches()       ? base_chunk
                         : u.method->block ? u.method->block
                                           : block_max,
                 asked = std::clamp<uint64_t>(out.segment_rows, block, universe_max), segment = asked - asked % block;
  const uint64_t segments = std::max<uint64_t>(1, u.universe / segment + (u.universe % segment != 0));
  if (segments > (1u << 20))
    return bad_tensor(error, u.first_tensor, DR_E_UNSUPPORTED, u.universe,
                      "%" PRIu64 " rows in segments of %" PRIu64 " rows: more than 2^20 segments", u.universe, segment);
  u.first_row = static_cast<uint32_t>(out.rows.size());
  u.rows = static_cast<uint32_t>(segments);
  const typical_row typical = typical_of(u, segment);
  for (uint64_t k = 0; k < segments; ++k) {
    batch_row row{};
    row.unit = static_cast<uint32_t>(&u - out.units.data());
    row.continues = k > 0;
    row.first = k * segment;
    row.universe = std::min(segment, u.universe - row.first);
    row.count_max = std::min(row.universe, u.selected_max);
    wire_plan wire = wire_of(*u.method, u);
    if (const dr_status s = resolve(wire, typical, u.first_tensor, error)) return s;
    if (!u.method->chooses()) row.plan = find_or_add(out.wire, wire);
    if (const dr_status s = bound_row(u, wire, row, error)) return s;
    if (u.method->chooses())
      if (const dr_status s = bound_choices(u, typical, out, row, error)) return s;
    for (const list_need& n : row.need) out.scratch = std::max({out.scratch, n.encode_scratch, n.decode_scratch});
    out.rows.push_back(row);
  }
  return DR_OK;
}

// The largest header with any of the plans that auto may choose, with the widest columns: for one row, with a single
// check, or for several rows. (The short form has fewer bytes than the general one.)
uint64_t header_bound(const batch& b, const header_layout& all) {
  uint64_t universe = 1, count = 0, support = 0, size[section_count] = {};
  for (const batch_row& row : b.rows) {
    universe = std::max(universe, row.universe);
    count = std::max(count, row.count_max);
    const auto widen = [&](const row_bound& r) {
      const uint64_t of[section_count] = {r.value, r.order, r.index};
      for (uint32_t s = 0; s < section_count; ++s)
        if (b.wire[r.plan].lists[s].count && !b.wire[r.plan].lists[s].fixed_size())
          size[s] = std::max(size[s], std::max<uint64_t>(of[s], 1));
      if (b.wire[r.plan].replaces_support()) support = std::max({support, r.support, r.count, uint64_t{1}});
    };
    if (row.choices.empty()) widen(row.bound);
    for (const row_choice& c : row.choices) widen(c.bound);
  }
  uint64_t each = 2 + bytes_for(universe) + bytes_for(count) + bytes_for(support ? std::max(support, count) : 0);
  for (const uint64_t s : size) each += bytes_for(s);
  if (b.rows.size() != 1) each += 8;
  return padded(24 + (all.has_tag ? 8 : 0) + all.table.size() + each * b.rows.size());
}

}  // namespace dr
