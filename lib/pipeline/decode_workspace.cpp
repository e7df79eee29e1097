#include <algorithm>
#include <cinttypes>

#include "patch/base_check.hpp"
#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/decode_work.hpp"
#include "pipeline/inverse.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

bool aligned(const uint8_t* payload) { return reinterpret_cast<uintptr_t>(payload) % 4 == 0; }

void lay_out_row(arena& memory, const wire_plan& plan, const wire_row& row, const uint8_t* payload, decode_row* to,
                 uint64_t& scratch) {
  decode_row& o = *new (to) decode_row{};
  if (plan.patch) o.sums = memory.allocate<uint64_t>(base_chunks(row_size(plan, row)));
  if (row.mode == mode_dense && !aligned(payload)) o.values = memory.allocate<std::byte>(row.sections());
  if (!coded(row)) return;
  if (plan.patch && !whole(plan, row)) o.based = memory.allocate<std::byte>(row.support * row_bytes(plan));
  if (plan.value().has(DR_NEEDS_HISTORY) && !whole(plan, row))
    o.past = memory.allocate<uint8_t>(row.support * plan.width);
  for (uint32_t s = 0; s < section_count; ++s) {
    const stage_list& list = plan.lists[s];
    if (list.count == 0 || !has_stream(plan, row, s)) continue;
    const uint64_t count = s == section_index ? row.count : row.support;
    list_need& need = o.slots[s].need;
    (void)list_needs(list, {row.universe, count, plan.dtype, plan.width}, need);  // validated with the header
    o.slots[s].lay_out(memory, list, true);
    scratch = std::max(scratch, need.decode_scratch);
  }
  if (!whole(plan, row)) o.support = memory.allocate<uint32_t>(row.support);
  o.values = memory.allocate<std::byte>(row.support * row_bytes(plan));
  if (plan.value().has(DR_REORDERS)) {
    o.in_order = memory.allocate<std::byte>(row.support * row_bytes(plan));
    if (plan.carries_order) {
      o.sorted = memory.allocate<uint64_t>(row.support);
    } else {
      o.order = memory.allocate<uint32_t>(row.support);
      o.seen = memory.allocate<uint32_t>(row.support / 32 + 1);
    }
  }
}

// The lists for n rows of several frames, at most `rows_max` of them in one frame.
decode_work lay_out_lists(arena& memory, size_t n, size_t frames, size_t rows_max) {
  decode_work w;
  w.rows = memory.allocate<decode_row>(n);
  w.frames = memory.allocate<decoded_frame>(frames);
  w.jobs = job_list::lay_out(memory, rows_max);
  w.selected = memory.allocate<uint32_t>(rows_max);
  w.by_plan = memory.allocate<uint32_t>(rows_max);
  return w;
}
void lay_out_scratch(arena& memory, uint64_t scratch, uint32_t workers, decode_work& w) {
  w.scratch_stride = round_up(scratch, arena::alignment);
  w.scratch = memory.allocate<std::byte>(w.scratch_stride * workers);
}

// A plan as a reader has it, without the encoder's parameters.
wire_plan as_read(const wire_plan& plan) {
  wire_plan read = plan;
  for (stage_list& list : read.lists)
    for (stage& s : list.stages) s.values = nullptr;
  return read;
}

// The maximum of memory that lay_out_row allocates for a row of a batch, for any data. An encoder sends a row by its
// plan (with auto, by one of its choices), with raw keys in place of a support that would be replaced, or dense; all
// cases are measured here. It never sends more rows or a larger support than the batch's bounds, and the memory grows
// with both, because codecs' needs do (codec.h; "a need never falls" in tests/properties/traits.cpp). A dense row is
// unaligned for any address of the frame.
uint64_t row_max(const batch& b, const batch_row& r, uint64_t& scratch) {
  uint64_t largest = 0;
  const auto ask = [&](uint32_t plan, row_mode mode, uint64_t count, uint64_t support, uint64_t dense) {
    wire_row row;
    row.mode = mode;
    row.universe = r.universe;
    row.count = count;
    row.support = support;
    row.size[section_value] = dense;
    arena memory;
    const auto* const unaligned = reinterpret_cast<const uint8_t*>(uintptr_t{1});  // never read
    decode_row measured;
    lay_out_row(memory, as_read(b.wire[plan]), row, unaligned, &measured, scratch);
    largest = std::max<uint64_t>(largest, memory.used());
  };
  const auto ask_plan = [&](uint32_t plan, uint64_t count, uint64_t support) {
    ask(plan, mode_plan, count, support, 0);
    if (b.wire[plan].replaces_support()) ask(plan, mode_raw_index, count, count, 0);
  };
  if (r.choices.empty()) ask_plan(r.plan, r.count_max, r.support_max);
  for (const row_choice& c : r.choices) ask_plan(c.plan, c.bound.count, c.bound.support);
  if (may_be_dense(b, r)) ask(r.plan, mode_dense, r.count_max, r.universe, r.universe * row_bytes(b.wire[r.plan]));
  return largest;
}

// The default limits (dr_decode_options documents them).
constexpr uint64_t workspace_factor = 256, workspace_min = uint64_t{1} << 20;
constexpr uint64_t scan_factor = 4096, scan_min = uint64_t{1} << 20;

// The units of the limits, and the elements that a decoder scans for sparse outputs.
struct extent {
  uint64_t bytes = 0;    // of the frames, and of the outputs that a frame writes
  uint64_t scanned = 0;  // elements of universes that an index codec scans for a sparse output

  void add(const frame_view& frame, std::span<const tensor_out> outs) {
    bytes = saturated_sum(bytes, frame.frame_size);
    const bool cut = is_cut(frame, outs.size());
    size_t next = 0;
    each_tensor(frame, [&](size_t begin, size_t end, uint64_t universe) {
      const tensor_out& o = outs[cut ? 0 : next++];
      const uint64_t width = frame.plans[frame.rows[begin].plan].width,
                     row = saturated_product(width, value_size(o.dtype));
      if (!o.index_dtype) {
        bytes = saturated_sum(bytes, saturated_product(universe, row));
        return;
      }
      // The base of a patch is read, which counts as much as an output that is written.
      if (frame.plans[frame.rows[begin].plan].patch) bytes = saturated_sum(bytes, saturated_product(universe, row));
      const uint64_t pair = row + index_type_size(o.index_dtype);
      uint64_t room = o.capacity;  // a union has no space for more, whatever the frame states
      for (size_t i = begin; i < end; ++i) {
        const wire_row& r = frame.rows[i];
        const wire_plan& plan = frame.plans[r.plan];
        const uint64_t written = std::min(r.support, room);
        room -= written;
        bytes = saturated_sum(bytes, saturated_product(written, pair));
        if (coded(r) && r.mode == mode_plan && plan.replaces_support() && !whole(plan, r))
          scanned = saturated_sum(scanned, r.universe);
      }
    });
  }
};

// Calls f(tensor, its support in the frame, its universe) for every tensor with an output of its own.
template <class F>
void each_support(const frame_view& frame, size_t outs, F&& f) {
  if (is_cut(frame, outs)) return;
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t universe) {
    uint64_t support = 0;
    for (size_t i = begin; i < end; ++i) support += frame.rows[i].support;
    f(next++, support, universe);
  });
}

// A union is at least as large as the support of a frame: so one that cannot fit is refused before it is computed.
dr_status check_unions(std::span<const frame_view> frames, std::span<const tensor_out> outs, dr_error& error) {
  size_t tensor = outs.size();
  for (const frame_view& frame : frames)
    each_support(frame, outs.size(), [&](size_t i, uint64_t support, uint64_t) {
      if (outs[i].index_dtype && support > outs[i].capacity) tensor = std::min(tensor, i);
    });
  if (tensor == outs.size()) return DR_OK;
  uint64_t rows = 0, universe_max = 0;
  for (const frame_view& frame : frames)
    each_support(frame, outs.size(), [&](size_t i, uint64_t support, uint64_t universe) {
      if (i == tensor) rows = saturated_sum(rows, support), universe_max = universe;
    });
  fail(error, DR_E_CAPACITY,
       "output %zu: capacity is smaller than the union of the supports (output %" PRIu64 ", at most %" PRIu64 ")",
       tensor, outs[tensor].capacity, std::min(rows, universe_max));
  error.tensor = tensor;
  error.needed = std::min(rows, universe_max);
  return DR_E_CAPACITY;
}

dr_status check_elements(const frame_view& frame, const dr_decode_options& limits, dr_error& error) {
  if (!limits.max_elements) return DR_OK;
  uint64_t elements = 0;
  for (const wire_row& row : frame.rows) {
    const uint64_t width = frame.plans[row.plan].width;
    if (row.universe > (limits.max_elements - elements) / width)
      return fail(error, DR_E_CAPACITY, "frame: elements exceed max_elements = %" PRIu64, limits.max_elements);
    elements += row.universe * width;
  }
  return DR_OK;
}

}  // namespace

bool may_be_dense(const batch& b, const batch_row& r) {
  return r.bound.payload >= r.universe * row_bytes(b.wire[r.plan]);
}

uint64_t sent_max(const batch& b, const batch_row& r) {
  return may_be_dense(b, r) ? r.universe : std::max(r.support_max, r.count_max);  // (the latter with raw keys)
}

void lay_out_merge(arena& memory, size_t frames, size_t outs, uint32_t workers, merge_scratch* scratch) {
  for (uint32_t k = 0; k < workers; ++k) {
    const merge_scratch own = merge_scratch::lay_out(memory, frames, outs);
    if (scratch) scratch[k] = own;
  }
}

decode_work decode_work::lay_out(arena& memory, std::span<const frame_view> frames, uint32_t workers) {
  size_t n = 0, rows_max = 0;
  for (const frame_view& f : frames) {
    n += f.rows.size();
    rows_max = std::max(rows_max, f.rows.size());
  }
  decode_work w = lay_out_lists(memory, n, frames.size(), rows_max);
  decode_row measured;
  uint64_t scratch = 0;
  size_t i = 0;
  for (const frame_view& f : frames)
    for (const wire_row& row : f.rows)
      lay_out_row(memory, f.plans[row.plan], row, f.data + row.offset, w.rows ? w.rows + i++ : &measured, scratch);
  w.stored = memory;
  lay_out_scratch(memory, scratch, workers, w);
  return w;
}

dr_status lay_out_decode(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                         const dr_decode_options& limits, uint32_t workers, arena memory, decode_work& work,
                         uint64_t& bytes, dr_error& error) {
  extent all;
  uint64_t headers = 0;
  for (const frame_view& frame : frames) {
    if (const dr_status s = check_elements(frame, limits, error)) return s;
    all.add(frame, outs);
    headers += frame.memory();
  }
  if (const uint64_t limit = saturated_sum(saturated_product(scan_factor, all.bytes), scan_min);
      !limits.max_elements && all.scanned > limit)
    return fail(error, DR_E_CAPACITY,
                "frame: its index codec scans %" PRIu64
                " elements for a sparse output; without max_elements at most %" PRIu64 " are allowed",
                all.scanned, limit);
  const uint64_t before = memory.used();
  work = decode_work::lay_out(memory, frames, workers);
  lay_out_merge(memory, frames.size(), outs.size(), workers, nullptr);
  measure_inverse(memory, frames, outs, limits);
  bytes = memory.used() - before;
  if (bytes > SIZE_MAX / 4) return fail(error, DR_E_MEMORY, "decode: the workspace exceeds the address space");
  const uint64_t limit =
      limits.max_workspace
          ? limits.max_workspace
          : saturated_product(workers, saturated_sum(saturated_product(workspace_factor, all.bytes), workspace_min));
  if (bytes + headers > limit) {
    if (const dr_status s = check_unions(frames, outs, error)) return s;
    fail(error, DR_E_CAPACITY, "decode: workspace of %" PRIu64 " bytes exceeds the limit of %" PRIu64, bytes + headers,
         limit);
    error.needed = bytes + headers;
    return DR_E_CAPACITY;
  }
  return DR_OK;
}

dr_status decode_workspace(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                           const dr_decode_options& limits, uint32_t workers, uint64_t& bytes, dr_error& error) {
  decode_work measured;
  return lay_out_decode(frames, outs, limits, workers, arena(), measured, bytes, error);
}

frame_limits limits_of(const batch& b) {
  arena rows;
  frame_limits limits;
  for (const batch_row& r : b.rows) rows.allocate<std::byte>(row_max(b, r, limits.scratch));
  limits.rows = rows.used();
  return limits;
}

dr_status check_limits(const batch& b, const frame_limits& limits, const frame_view& frame, dr_error& error) {
  if (frame.rows.size() != b.rows.size())
    return fail(error, DR_E_CORRUPT, "frame: %zu segments; the plan makes %zu", frame.rows.size(), b.rows.size());
  if (frame.plans.size() > b.wire.size())
    return fail(error, DR_E_CORRUPT, "frame: %zu lists of codecs; the plan has %zu", frame.plans.size(), b.wire.size());
  arena rows;
  uint64_t scratch = 0;
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const wire_row& row = frame.rows[i];
    const batch_row& r = b.rows[i];
    const uint64_t support_max = sent_max(b, r);
    if (row.universe != r.universe || row.support > support_max)
      return fail(error, DR_E_CORRUPT,
                  "frame: segment %zu has a support of %" PRIu64 " in %" PRIu64 " rows; the plan makes at most %" PRIu64
                  " in %" PRIu64,
                  i, row.support, row.universe, support_max, r.universe);
    decode_row measured;
    lay_out_row(rows, frame.plans[row.plan], row, frame.data + row.offset, &measured, scratch);
  }
  if (rows.used() > limits.rows || scratch > limits.scratch)
    return fail(error, DR_E_CORRUPT,
                "frame: %" PRIu64 " bytes and %" PRIu64 " of scratch to decode; the plan needs at most %" PRIu64
                " and %" PRIu64,
                rows.used(), scratch, limits.rows, limits.scratch);
  return DR_OK;
}

dr_status decode_workspace(const batch& b, size_t frames, decode_memory& needed, dr_error& error) {
  const auto too_large = [&] { return fail(error, DR_E_MEMORY, "decode: the workspace exceeds the address space"); };
  const frame_limits limit = limits_of(b);
  if (frames && limit.rows > SIZE_MAX / frames) return too_large();
  arena memory;
  decode_work w = lay_out_lists(memory, b.rows.size() * frames, frames, b.rows.size());
  memory.allocate<std::byte>(limit.rows * frames);
  needed.stored = memory.used();
  lay_out_scratch(memory, limit.scratch, b.workers, w);
  lay_out_merge(memory, frames, b.shapes.size(), b.workers, nullptr);
  measure_inverse(memory, b);
  needed.transient = memory.used() - needed.stored;
  return memory.used() > SIZE_MAX / 4 ? too_large() : DR_OK;
}

}  // namespace dr
