#include <algorithm>
#include <cinttypes>

#include "patch/base_check.hpp"
#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/decode_work.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

bool aligned(const uint8_t* payload) { return reinterpret_cast<uintptr_t>(payload) % 4 == 0; }

decode_row take_row(arena& memory, const wire_plan& plan, const wire_row& row, const uint8_t* payload,
                    uint64_t& scratch) {
  decode_row o{};
  if (plan.patch) o.sums = memory.take<uint64_t>(base_chunks(row_size(plan, row)));
  if (row.mode == mode_dense && !aligned(payload)) o.values = memory.take<std::byte>(row.sections());
  if (!coded(row)) return o;
  if (plan.patch && !whole(plan, row)) o.based = memory.take<std::byte>(row.support * row_bytes(plan));
  if (plan.value().has(DR_NEEDS_HISTORY) && !whole(plan, row)) o.past = memory.take<uint8_t>(row.support * plan.width);
  for (uint32_t s = 0; s < section_count; ++s) {
    const stage_list& list = plan.lists[s];
    if (list.count == 0 || !has_stream(plan, row, s)) continue;
    const uint64_t count = s == section_index ? row.count : row.support;
    list_need need;
    (void)list_needs(list, {row.universe, count, plan.dtype, plan.width}, need);  // was validated with the header
    o.slots[s] = stream_slot::take(memory, list, need, true);
    scratch = std::max(scratch, need.decode_scratch);
  }
  if (!whole(plan, row)) o.support = memory.take<uint32_t>(row.support);
  o.values = memory.take<std::byte>(row.support * row_bytes(plan));
  if (plan.value().has(DR_REORDERS)) {
    o.in_order = memory.take<std::byte>(row.support * row_bytes(plan));
    if (plan.carries_order) {
      o.sorted = memory.take<uint64_t>(row.support);
    } else {
      o.order = memory.take<uint32_t>(row.support);
      o.seen = memory.take<uint32_t>(row.support / 32 + 1);
    }
  }
  return o;
}

// Of n rows of some frames, at most `most` of them in one.
decode_work take_lists(arena& memory, size_t n, size_t frames, size_t most) {
  decode_work w{};
  w.rows = memory.take<decode_row>(n);
  w.frames = memory.take<decoded_frame>(frames);
  w.jobs = job_list::take(memory, most);
  w.selected = memory.take<uint32_t>(most);
  w.by_plan = memory.take<uint32_t>(most);
  return w;
}
void take_scratch(arena& memory, uint64_t scratch, uint32_t workers, decode_work& w) {
  w.scratch_stride = round_up(scratch, arena::alignment);
  w.scratch = memory.take<std::byte>(w.scratch_stride * workers);
}

// A plan as a reader knows it, without the stages of the encoder.
wire_plan as_read(const wire_plan& plan) {
  wire_plan read = plan;
  for (stage_list& list : read.lists)
    for (stage& s : list.stages) s.values = nullptr;
  return read;
}

// The most that take_row takes of a row of a batch, whatever the data were. An encoder sends a row by one of its plans
// (auto: of its choices), with raw keys in place of a support that would be replaced, or dense; each is asked for here.
// It never sends more rows or a larger support than the batch's bounds; what take_row takes grows with both, for an
// arena does and a codec's need does (codec.h; "a need never falls" in tests/properties/traits.cpp). Dense it is sent
// only where its codes may be longer, so where the bound of the payload is the dense row's; and unaligned, whatever the
// address of the frame.
uint64_t most_of_row(const batch& b, const batch_row& r, uint64_t& scratch) {
  uint64_t most = 0;
  const auto ask = [&](uint32_t plan, row_mode mode, uint64_t count, uint64_t support, uint64_t dense) {
    wire_row row;
    row.mode = mode;
    row.universe = r.universe;
    row.count = count;
    row.support = support;
    row.size[section_value] = dense;
    arena memory;
    const auto* const unaligned = reinterpret_cast<const uint8_t*>(uintptr_t{1});  // never looked at
    take_row(memory, as_read(b.wire[plan]), row, unaligned, scratch);
    most = std::max<uint64_t>(most, memory.used());
  };
  const auto ask_plan = [&](uint32_t plan, uint64_t count, uint64_t support) {
    ask(plan, mode_plan, count, support, 0);
    if (b.wire[plan].replaces_support()) ask(plan, mode_raw_index, count, count, 0);
  };
  if (r.choices.empty()) ask_plan(r.plan, r.count_max, r.support_max);
  for (const row_choice& c : r.choices) ask_plan(c.plan, c.bound.count, c.bound.support);
  const uint64_t dense = r.universe * row_bytes(b.wire[r.plan]);
  if (r.bound.payload >= dense) ask(r.plan, mode_dense, r.count_max, r.universe, dense);
  return most;
}

// The limits that hold where the caller sets none (dr_decode_options says them).
constexpr uint64_t workspace_factor = 256, workspace_least = uint64_t{1} << 20;
constexpr uint64_t asked_factor = 4096, asked_least = uint64_t{1} << 20;

// The units of the limits, and the elements that a decoder scans for sparse outputs.
struct extent {
  uint64_t bytes = 0;  // of the frames, and of the outputs written for each
  uint64_t asked = 0;  // elements of universes that an index codec goes through for a sparse output

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
      // The base of a patch is read as an output is written.
      if (frame.plans[frame.rows[begin].plan].patch) bytes = saturated_sum(bytes, saturated_product(universe, row));
      const uint64_t pair = row + index_type_size(o.index_dtype);
      uint64_t room = o.capacity;  // a union has no room for more of a frame, whatever that says
      for (size_t i = begin; i < end; ++i) {
        const wire_row& r = frame.rows[i];
        const wire_plan& plan = frame.plans[r.plan];
        const uint64_t written = std::min(r.support, room);
        room -= written;
        bytes = saturated_sum(bytes, saturated_product(written, pair));
        if (coded(r) && r.mode == mode_plan && plan.replaces_support() && !whole(plan, r))
          asked = saturated_sum(asked, r.universe);
      }
    });
  }
};

// Calls f(tensor, its support in the frame, its universe) for each that has an output of its own.
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

// A union is no smaller than the support of a frame: none of that size is made to find that it does not fit.
dr_status check_unions(std::span<const frame_view> frames, std::span<const tensor_out> outs, dr_error& error) {
  size_t tensor = outs.size();
  for (const frame_view& frame : frames)
    each_support(frame, outs.size(), [&](size_t i, uint64_t support, uint64_t) {
      if (outs[i].index_dtype && support > outs[i].capacity) tensor = std::min(tensor, i);
    });
  if (tensor == outs.size()) return DR_OK;
  uint64_t rows = 0, most = 0;
  for (const frame_view& frame : frames)
    each_support(frame, outs.size(), [&](size_t i, uint64_t support, uint64_t universe) {
      if (i == tensor) rows = saturated_sum(rows, support), most = universe;
    });
  fail(error, DR_E_CAPACITY,
       "output %zu: capacity is smaller than the union of the supports (output %" PRIu64 ", at most %" PRIu64 ")",
       tensor, outs[tensor].capacity, std::min(rows, most));
  error.tensor = tensor;
  error.needed = std::min(rows, most);
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

void take_rooms(arena& memory, size_t frames, size_t outs, uint32_t workers, deliver_room* rooms) {
  for (uint32_t k = 0; k < workers; ++k) {
    const deliver_room room = deliver_room::take(memory, frames, outs);
    if (rooms) rooms[k] = room;
  }
}

decode_work decode_work::take(arena& memory, std::span<const frame_view> frames, uint32_t workers, arena& kept) {
  size_t n = 0, most = 0;
  for (const frame_view& f : frames) {
    n += f.rows.size();
    most = std::max(most, f.rows.size());
  }
  decode_work w = take_lists(memory, n, frames.size(), most);
  uint64_t scratch = 0;
  size_t i = 0;
  for (const frame_view& f : frames)
    for (const wire_row& row : f.rows) {
      const decode_row o = take_row(memory, f.plans[row.plan], row, f.data + row.offset, scratch);
      if (!memory.measures() && memory.fits()) w.rows[i] = o;
      ++i;
    }
  kept = memory;
  take_scratch(memory, scratch, workers, w);
  return w;
}

dr_status decode_workspace(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                           const dr_decode_options& limits, uint32_t workers, uint64_t& bytes, dr_error& error) {
  extent all;
  uint64_t headers = 0;
  for (const frame_view& frame : frames) {
    if (const dr_status s = check_elements(frame, limits, error)) return s;
    all.add(frame, outs);
    headers += frame.memory();
  }
  if (const uint64_t most = saturated_sum(saturated_product(asked_factor, all.bytes), asked_least);
      !limits.max_elements && all.asked > most)
    return fail(error, DR_E_CAPACITY,
                "frame: its index codec scans %" PRIu64
                " elements for a sparse output; without max_elements at most %" PRIu64 " are allowed",
                all.asked, most);
  arena memory, kept;
  decode_work::take(memory, frames, workers, kept);
  take_rooms(memory, frames.size(), outs.size(), workers, nullptr);
  bytes = memory.used();
  if (bytes > SIZE_MAX / 4) return fail(error, DR_E_MEMORY, "decode: the workspace exceeds the address space");
  const uint64_t most =
      limits.max_workspace
          ? limits.max_workspace
          : saturated_product(workers, saturated_sum(saturated_product(workspace_factor, all.bytes), workspace_least));
  if (bytes + headers > most) {
    if (const dr_status s = check_unions(frames, outs, error)) return s;
    fail(error, DR_E_CAPACITY, "decode: workspace of %" PRIu64 " bytes exceeds the limit of %" PRIu64, bytes + headers,
         most);
    error.needed = bytes + headers;
    return DR_E_CAPACITY;
  }
  return DR_OK;
}

frame_limits limits_of(const batch& b) {
  arena rows;
  frame_limits most;
  for (const batch_row& r : b.rows) rows.take<std::byte>(most_of_row(b, r, most.scratch));
  most.rows = rows.used();
  return most;
}

dr_status check_limits(const batch& b, const frame_limits& most, const frame_view& frame, dr_error& error) {
  if (frame.rows.size() != b.rows.size())
    return fail(error, DR_E_CORRUPT, "frame: %zu segments; the plan makes %zu", frame.rows.size(), b.rows.size());
  if (frame.plans.size() > b.wire.size())
    return fail(error, DR_E_CORRUPT, "frame: %zu lists of codecs; the plan has %zu", frame.plans.size(), b.wire.size());
  arena rows;
  uint64_t scratch = 0;
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const wire_row& row = frame.rows[i];
    const batch_row& r = b.rows[i];
    const uint64_t support_max = std::max(r.support_max, r.count_max);  // (the latter with raw keys)
    if (row.universe != r.universe || (row.mode != mode_dense && row.support > support_max))
      return fail(error, DR_E_CORRUPT,
                  "frame: segment %zu has a support of %" PRIu64 " in %" PRIu64 " rows; the plan makes at most %" PRIu64
                  " in %" PRIu64,
                  i, row.support, row.universe, support_max, r.universe);
    take_row(rows, frame.plans[row.plan], row, frame.data + row.offset, scratch);
  }
  if (rows.used() > most.rows || scratch > most.scratch)
    return fail(error, DR_E_CORRUPT,
                "frame: %" PRIu64 " bytes and %" PRIu64 " of scratch to decode; the plan takes at most %" PRIu64
                " and %" PRIu64,
                rows.used(), scratch, most.rows, most.scratch);
  return DR_OK;
}

dr_status decode_workspace(const batch& b, size_t frames, decode_memory& room, dr_error& error) {
  const auto too_large = [&] { return fail(error, DR_E_MEMORY, "decode: the workspace exceeds the address space"); };
  const frame_limits most = limits_of(b);
  if (frames && most.rows > SIZE_MAX / frames) return too_large();
  arena memory;
  decode_work w = take_lists(memory, b.rows.size() * frames, frames, b.rows.size());
  memory.take<std::byte>(most.rows * frames);
  room.kept = memory.used();
  take_scratch(memory, most.scratch, b.workers, w);
  take_rooms(memory, frames, b.shapes.size(), b.workers, nullptr);
  room.passing = memory.used() - room.kept;
  return memory.used() > SIZE_MAX / 4 ? too_large() : DR_OK;
}

}  // namespace dr
