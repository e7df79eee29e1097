#include "pipeline/device_decode_work.hpp"

#include <algorithm>

#include "core/arena.hpp"
#include "core/codec_notes.hpp"

namespace dr {
namespace {

// The need of a row's codec; zero for a row without elements in the stream, whose codec is not called.
dr_need row_need(const decode_shape& shape, size_t row, uint32_t s) {
  const stream_shape stream = stream_of(shape, row, s);
  return stream.count_max ? need_of(shape.wire[shape.rows[row].plan].lists[s], stream) : dr_need{};
}

// Of the rows of a frame, then of those of all others, which have the same capacities.
template <class Bytes>
void lay_out_slots(const decode_shape& shape, size_t frames, std::vector<device_decode_row>& rows, Bytes&& bytes) {
  const size_t n = shape.rows.size();
  uint32_t plan = ~0u;
  bool in_frame[section_count] = {};
  rows.clear();
  for (size_t i = 0; i < n * frames; ++i) {
    const auto& r = shape.rows[i % n];
    for (uint32_t s = 0; s < section_count && plan != r.plan; ++s)
      in_frame[s] = reads_frames(shape.wire[r.plan].lists[s]);
    plan = r.plan;
    device_decode_row& o = rows.emplace_back();
    for (uint32_t s = 0; s < section_count; ++s) {
      o.capacity[s] = i < n ? std::max(row_need(shape, i, s).payload, r.size[s]) : rows[i - n].capacity[s];
      if (!in_frame[s]) o.slot[s] = reinterpret_cast<uint8_t*>(bytes(o.capacity[s] + slack + 16));
    }
  }
}

template <class Bytes>
void lay_out_row(const decode_shape& shape, size_t row, device_decode_row& o, Bytes&& bytes) {
  const auto& r = shape.rows[row];
  const wire_plan& plan = shape.wire[r.plan];
  const uint64_t row_bytes = uint64_t{plan.width} * value_size(plan.dtype);
  const uint64_t block = plan.index().block, keys = plan.index().keys(std::max(r.coded_max, r.support_max));
  if (r.lists) o.support = reinterpret_cast<uint32_t*>(bytes(4 * keys * block + slack));
  if (r.lists && block > 1) o.blocks = reinterpret_cast<uint32_t*>(bytes(4 * keys + slack));
  if (!copies_values(plan)) o.values = bytes(r.support_max * row_bytes + slack);
  // (Every output but the last may end with a part of a tile.)
  if (!r.to_pairs || shape.patches)
    o.starts = reinterpret_cast<uint32_t*>(bytes(4 * (ceil_div(r.universe * plan.width, merge_tile) + 1 + shape.cuts)));
  if (shape.patches && plan.value().has(DR_NEEDS_BASE)) o.based = bytes(r.support_max * row_bytes + slack);
  if (!plan.value().has(DR_REORDERS)) return;
  o.in_order = bytes(r.support_max * row_bytes + slack);
  if (plan.carries_order)
    o.sorted = reinterpret_cast<uint32_t*>(bytes(4 * r.support_max + slack));
  else
    o.order = reinterpret_cast<uint32_t*>(bytes(4 * r.support_max + slack));
}

}  // namespace

bool copies_values(const wire_plan& plan) {
  return plan.value().count == 1 && notes_of(*plan.value().front().codec).copies;
}
bool reads_frames(const stage_list& list) {
  if (list.count != 1) return false;
  const codec_notes notes = notes_of(*list.front().codec);
  return notes.copies || notes.reads_frames;
}

stream_shape stream_of(const decode_shape& shape, size_t row, uint32_t s) {
  const auto& r = shape.rows[row];
  const wire_plan& p = shape.wire[r.plan];
  if (s != section_index) return {r.universe, r.support_max, p.dtype, p.width};
  return {p.index().keys(r.universe), p.index().keys(r.coded_max), p.dtype, p.width};
}

dr_need need_of(const stage_list& list, const stream_shape& shape, dr_size_rule* rule) {
  dr_need need{};
  need.struct_size = sizeof need;
  need.rule = rule;
  if (list.count == 0) return need;
  const dr_job job = shape_job(shape);
  const dr_params params = list.front().params();
  (void)list.front().codec->cuda->need(&params, &job, 1, &need);  // validated with the shape
  return need;
}

device_decode_work device_decode_work::lay_out(const decode_shape& shape, size_t frames, std::byte* base,
                                               device_decode_scratch& host) {
  if (base && shape.id && host.laid_out == shape.id && host.frames_laid_out == frames && host.base == base)
    return host.work;
  host.laid_out = 0;  // (what follows may run out of memory)
  device_decode_work w;
  arena memory;
  const auto bytes = [&](uint64_t size) {
    const uint64_t offset = memory.used();
    memory.allocate<std::byte>(size);
    return base ? base + offset : nullptr;
  };
  const size_t n = shape.rows.size(), all = n * frames;
  w.rows = reinterpret_cast<device_row*>(bytes(all * sizeof(device_row)));
  w.result = reinterpret_cast<unpack_result*>(bytes(all * sizeof(unpack_result)));
  w.state = reinterpret_cast<unpack_state*>(bytes(frames * sizeof(unpack_state)));
  const uint64_t zero = memory.used();
  w.zero = base ? base + zero : nullptr;
  w.made = reinterpret_cast<uint64_t*>(bytes(all * 8));
  w.gate = reinterpret_cast<gate_state*>(bytes(sizeof(gate_state)));
  w.back = reinterpret_cast<gate_state*>(bytes(sizeof(gate_state)));
  if (shape.patches) w.patched = reinterpret_cast<uint64_t*>(bytes(2 * all * sizeof(uint64_t)));
  host.scratch.assign(shape.wire.size() * section_count, {});
  for (uint32_t p = 0; p < shape.wire.size(); ++p)
    for (uint32_t s = 0; s < section_count; ++s) {
      uint64_t size = 0;
      for (size_t i = 0; i < n; ++i)
        if (shape.rows[i].plan == p) size += round_up(row_need(shape, i, s).decode_scratch, 64);
      host.scratch[p * section_count + s] = {bytes(size * frames), size * frames};
    }
  host.seen.assign(shape.wire.size(), nullptr);
  for (uint32_t p = 0; p < shape.wire.size(); ++p) {
    uint64_t words = 0;
    if (shape.wire[p].order().count)
      for (const auto& r : shape.rows)
        if (r.plan == p) words += r.support_max / 32 + 1;
    host.seen[p] = reinterpret_cast<uint32_t*>(bytes(4 * words * frames));
  }
  w.zero_size = memory.used() - zero;
  lay_out_slots(shape, frames, host.rows, bytes);
  for (size_t i = 0; i < all; ++i) lay_out_row(shape, i % n, host.rows[i], bytes);
  host.sort.assign(shape.wire.size(), {});
  for (uint32_t p = 0; p < shape.wire.size(); ++p) {
    if (!shape.wire[p].carries_order) continue;
    uint64_t pairs = 0;
    for (const auto& r : shape.rows)
      if (r.plan == p) pairs += r.support_max * frames;
    dr_sort& sort = host.sort[p];
    sort.struct_size = sizeof sort;
    sort.n = pairs;
    sort.keys = reinterpret_cast<uint64_t*>(bytes(8 * pairs));
    sort.other_keys = reinterpret_cast<uint64_t*>(bytes(8 * pairs));
    sort.values = reinterpret_cast<uint32_t*>(bytes(4 * pairs));
    sort.other_values = reinterpret_cast<uint32_t*>(bytes(4 * pairs));
    sort.temp_size = dr_sort_temp(pairs);
    sort.temp = bytes(sort.temp_size);
  }
  w.blob = bytes(round_up(all * sizeof(unpack_row), 16) + round_up(frames * sizeof(unpack_frame), 16) +
                 round_up(shape.wire.size() * sizeof(plan_rule), 16) + round_up(shape.header.head.size(), 16) +
                 round_up(all * sizeof(merge_row), 16) + round_up(all * sizeof(support_starts), 16) +
                 2 * round_up(std::max<size_t>(n, shape.cuts) * sizeof(merge_out), 16) +
                 (shape.segmented() ? round_up(n * sizeof(uint32_t), 16) : 0) +
                 (shape.patches ? round_up(all * sizeof(based_row), 16) : 0));
  w.size = memory.used();
  host.laid_out = base ? shape.id : 0;
  host.frames_laid_out = frames;
  host.base = base;
  host.work = w;
  return w;
}

}  // namespace dr
