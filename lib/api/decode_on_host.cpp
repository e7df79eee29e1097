// Decode and merge of frames in host memory.
#include <algorithm>
#include <cinttypes>

#include "api/frame_checks.hpp"
#include "api/run_decode.hpp"
#include "pipeline/decode_work.hpp"
#include "pipeline/inverse.hpp"
#include "pipeline/trace.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

// UNSUPPORTED: an output of a type in which counts of so many votes are rounded.
dr_status check_votes(const voters& votes, size_t frames, std::span<const tensor_out> outs, dr_error& error) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const uint64_t exact_max = exact_counts(outs[i].dtype);
    if (!votes(i) || frames <= exact_max) continue;
    fail(error, DR_E_UNSUPPORTED,
         "output %zu: %zu votes exceed the %" PRIu64 " that its type counts exactly; vote into f32", i, frames,
         exact_max);
    error.tensor = i;
    error.what = frames;
    return DR_E_UNSUPPORTED;
  }
  return DR_OK;
}

uint64_t bytes_of(std::span<const frame_view> frames) {
  uint64_t bytes = 0;
  for (const frame_view& f : frames)
    for (const wire_row& row : f.rows) {
      const wire_plan& plan = f.plans[row.plan];
      bytes += row.support * (4 + uint64_t{plan.width} * value_size(plan.dtype));
    }
  return bytes;
}

uint64_t bytes_of(std::span<const tensor_out> outs) {
  uint64_t bytes = 0;
  for (const tensor_out& o : outs) {
    const uint64_t row = uint64_t{std::max(1u, o.width)} * value_size(o.dtype);
    const uint64_t index = o.index_dtype == DR_U64 || o.index_dtype == DR_I64 ? 8 : 4;
    bytes += o.index_dtype ? o.count * (row + index) : o.universe * row;
  }
  return bytes;
}

// The stages of a call. The frames, as they were read, are the context's.
struct host_call {
  context& c;
  const decode_request& request;
  const host_decode& how;
  std::span<tensor_out> outs;
  pool& workers = how.batch ? c.workers_for(*how.batch) : *c.workers;

  trace_span span(const char* stage) const { return {how.options.trace, how.options.trace_user, stage}; }
  sparse_outputs sparse() const { return request.copies ? sparse_outputs::one_frame : sparse_outputs::unions; }

  dr_status check_frame(frame_view& f) const {
    if (const dr_status s = check_tag(f, how.options, c.error)) return s;
    if (how.batch)
      if (const dr_status s = dr::check_frame(*how.batch, f, c.error)) return s;
    if (const dr_status s = check_patch(is_patch(f), how.options, c.error)) return s;
    if (const dr_status s = keep_range(f, how.options, outs.size(), c.error)) return s;
    return how.memory.checked ? DR_OK : check_outputs(f, outs, sparse(), c.error);
  }

  // Into c.frames.
  dr_status read_headers(std::span<const frame_view>& read) const {
    trace_span header = span("header");
    c.frames.resize(std::max(request.frames.size(), c.frames.size()));
    const std::span<frame_view> frames(c.frames.data(), request.frames.size());
    uint64_t room = header_room(how.options);
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto* const bytes = static_cast<const uint8_t*>(request.frames[i].data);
      const size_t size = request.frames[i].size;
      dr_status s = request.verified ? read_header(bytes, size, size, frames[i], c.error, room)
                                     : read_sound_frame(request.frames[i], frames[i], c.error, room);
      room -= std::min(room, frames[i].memory());
      if (!s) s = check_frame(frames[i]);
      if (s) return request.copies ? s : blame_frame(c.error, i);
      header.bytes += frames[i].frame_size;
    }
    read = frames;
    return check_tiles(frames, outs, how.options, c.error);
  }

  // Checks limits and overlap with the outputs. If `memory` is too small for `bytes`, nothing is laid out.
  dr_status lay_out(std::span<const frame_view> frames, const arena& memory, decode_work& work, uint64_t& bytes) const {
    if (const dr_status s = lay_out_decode(frames, outs, how.options, workers.workers(), memory, work, bytes, c.error))
      return s;
    const auto frame_at = [&](size_t i) { return dr_bytes{frames[i].data, frames[i].frame_size}; };
    return check_apart(c, frames.size(), frame_at, outs, how.memory.ranges, frames.size() != 1);
  }

  // In the caller's workspace in a prepared call, otherwise in the context's.
  dr_status lay_out(std::span<const frame_view> frames, decode_work& work) const {
    const prepared_memory& m = how.memory;
    const size_t size = !how.batch ? c.workspace().size() : m.workspace ? m.workspace_size : 0;
    uint64_t bytes = 0;
    if (const dr_status s = lay_out(frames, {how.batch ? m.workspace : c.workspace().data(), size}, work, bytes))
      return s;
    if (bytes <= size) return DR_OK;
    if (how.batch) return check_workspace(m.workspace, m.workspace_size, bytes, c.error);
    if (const dr_status s = c.reserve(bytes)) return s;
    arena memory(c.workspace().data(), bytes);
    work = decode_work::lay_out(memory, frames, workers.workers());
    return DR_OK;
  }

  // rows [rows_of(frames)]
  dr_status decode_frames(std::span<const frame_view> frames, const decode_work& work, decoded_row* rows,
                          std::span<const decoded_frame>& decoded) const {
    trace_span decode = span("decode");
    if (const dr_status s = decode_rows(frames, outs, request.copies, workers, work, rows, decoded, c.error)) return s;
    if (decode.listened()) decode.bytes = bytes_of(frames);
    return DR_OK;
  }

  // Into c.scratches.
  const merge_scratch* lay_out_merge(arena& memory, size_t frames) const {
    c.scratches.resize(workers.workers());
    dr::lay_out_merge(memory, frames, outs.size(), workers.workers(), c.scratches.data());
    return memory.fits() ? c.scratches.data() : nullptr;
  }
  dr_status fail_room() const { return fail(c.error, DR_E_INTERNAL, "decode: the workspace is too small"); }

  // The rows whose tiles are to be inverted.
  decoded_frame inverted(decoded_frame like) const {
    return how.options.flags & DR_DECODE_COEFFICIENTS ? decoded_frame{} : like;
  }

  dr_status deliver_frame(const frame_view& frame, decoded_frame decoded, arena& memory) const {
    trace_span deliver = span("deliver");
    const merge_scratch* const scratch = lay_out_merge(memory, 1);
    if (!scratch) return fail_room();
    inverse back(memory, inverted(decoded), outs);
    if (!memory.fits()) return fail_room();
    dr::deliver(frame, decoded, scratch, workers, back.merged(false));
    back.finish(false, workers);
    deliver.bytes = bytes_of(outs);
    return DR_OK;
  }
  dr_status merge_frames(std::span<const decoded_frame> frames, arena& memory) const {
    trace_span merge = span("merge");
    const merge_scratch* const scratch = lay_out_merge(memory, frames.size());
    if (!scratch) return fail_room();
    const bool by_plan = how.batch && !how.batch->votes.empty() && !request.adds;
    const voters votes{request.votes, by_plan ? how.batch->votes.data() : nullptr};
    if (const dr_status s = check_votes(votes, frames.size(), outs, c.error)) return s;
    if (const dr_status s = count_unions(frames, scratch, workers, outs, c.error)) return s;
    inverse back(memory, frames.empty() ? decoded_frame{} : inverted(frames[0]), outs);
    if (!memory.fits()) return fail_room();
    // Every frame is sound, and there is room: from here on nothing fails.
    dr::merge(frames, request.weights, request.adds, votes, scratch, workers, back.merged(request.adds));
    back.finish(request.adds, workers);
    merge.bytes = bytes_of(outs);
    return DR_OK;
  }
};

size_t rows_of(std::span<const frame_view> frames) {
  size_t rows = 0;
  for (const frame_view& f : frames) rows += f.rows.size();
  return rows;
}

// ARGUMENT: a sparse output, to which nothing can be added.
dr_status check_all_dense(std::span<const tensor_out> outs, dr_error& error) {
  for (size_t i = 0; i < outs.size(); ++i)
    if (outs[i].index_dtype) {
      fail(error, DR_E_ARGUMENT, "output %zu is sparse; DR_DECODE_ADD requires dense outputs", i);
      error.tensor = i;
      return DR_E_ARGUMENT;
    }
  return DR_OK;
}

// A merge of no frames.
dr_status check_no_frames(const host_decode& how, std::span<const tensor_out> outs, dr_error& error) {
  if (how.batch)
    if (const dr_status s = check_patch(how.batch->patches(), how.options, error)) return s;
  if (const dr_status s = check_merged_types(outs, error)) return s;
  uint64_t rows = 0;
  return check_outputs(outs, sparse_outputs::unions, rows, error);
}

}  // namespace

dr_status decode_on_host(context& c, const decode_request& request, const host_decode& how,
                         std::span<tensor_out> outs) {
  const host_call call{c, request, how, outs};
  std::span<const frame_view> frames;
  if (request.adds)
    if (const dr_status s = check_all_dense(outs, c.error)) return s;
  if (const dr_status s = check_applied(request, how.options, c.error)) return s;
  if (const dr_status s = call.read_headers(frames)) return s;
  if (frames.empty())
    if (const dr_status s = check_no_frames(how, outs, c.error)) return s;
  decode_work work;
  if (const dr_status s = call.lay_out(frames, work)) return s;
  c.rows.resize(rows_of(frames));
  c.scratches.resize(call.workers.workers());  // before the sums of a patch move: behind that nothing may fail
  std::span<const decoded_frame> decoded;
  if (const dr_status s = call.decode_frames(frames, work, c.rows.data(), decoded)) return s;
  return request.copies ? call.deliver_frame(frames[0], decoded[0], work.stored)
                        : call.merge_frames(decoded, work.stored);
}

dr_status decode_ahead(context& c, const decode_request& request, const host_decode& how, std::span<tensor_out> outs,
                       arena& memory, std::span<const decoded_frame>& decoded) {
  const host_call call{c, request, how, outs};
  std::span<const frame_view> frames;
  if (const dr_status s = call.read_headers(frames)) return s;
  auto* const rows = memory.allocate<decoded_row>(rows_of(frames));
  decode_work work;
  uint64_t bytes = 0;  // (fits if the frames are the batch's)
  if (const dr_status s = call.lay_out(frames, memory, work, bytes)) return s;
  if (const dr_status s = call.decode_frames(frames, work, rows, decoded)) return s;
  memory = work.stored;
  return DR_OK;
}

uint64_t rows_ahead(size_t rows) {
  arena memory;
  memory.allocate<decoded_row>(rows);
  return memory.used();
}

dr_status merge_decoded(context& c, const decode_request& request, const host_decode& how, std::span<tensor_out> outs,
                        arena& memory, std::span<const decoded_frame> decoded) {
  return host_call{c, request, how, outs}.merge_frames(decoded, memory);
}

}  // namespace dr
