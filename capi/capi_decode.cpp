// Decode and merge: of any frame, and of a prepared batch's.
#include <algorithm>
#include <cmath>

#include "capi/handles.hpp"
#include "pipeline/host_detour.hpp"
#include "pipeline/trace.hpp"
#include "primitive/value_type.hpp"

using dr::fail;
using dr::find_target;
using dr::guarded;
using dr::in_context;
using dr::prefix;
using dr::read_array;
using dr::read_struct;
using dr::reported;
using dr::write_struct;

namespace {

dr_status read_options(const dr_decode_options* from, dr_decode_options& out, dr_error& error) {
  if (const dr_status s = read_struct(from, "options", out, error)) return s;
  if ((out.flags & ~dr::decode_flags) || out.reserved)
    return fail(error, DR_E_UNSUPPORTED, "options: unknown flags 0x%x, or reserved is not 0", out.flags);
  return DR_OK;
}

// What headers may take.
uint64_t header_room(const dr_decode_options& o) { return o.max_workspace ? o.max_workspace : UINT64_MAX; }

dr_status read_sound_frame(const void* frame, size_t size, dr::frame_view& out, dr_error& error,
                           uint64_t memory_max = UINT64_MAX) {
  if (!frame) return fail(error, DR_E_ARGUMENT, "frame is NULL");
  if (const dr_status s = dr::read_frame(static_cast<const uint8_t*>(frame), size, out, error, memory_max)) return s;
  if (out.status)
    return fail(error, DR_E_PEER, "frame: the rank that sent it could not encode (%s): %s", dr::status_name(out.status),
                out.message);
  return DR_OK;
}

// Whether a frame is of the call that is decoded.
dr_status check_tag(const dr::frame_view& f, const dr_decode_options& o, dr_error& error) {
  if (!(o.flags & DR_DECODE_TAG) || (f.flags & DR_FRAME_TAG && f.tag == o.tag)) return DR_OK;
  if (!(f.flags & DR_FRAME_TAG))
    return fail(error, DR_E_ARGUMENT, "frame: it has no tag; %" PRIu64 " is wanted", o.tag);
  fail(error, DR_E_ARGUMENT, "frame: its tag is %" PRIu64 "; %" PRIu64 " is wanted", f.tag, o.tag);
  error.what = f.tag;
  return DR_E_ARGUMENT;
}

// One weight that is not finite would be in every sum.
dr_status check_weights(const float* weights, size_t k, dr_error& error) {
  for (size_t i = 0; weights && i < k; ++i)
    if (!std::isfinite(weights[i])) {
      fail(error, DR_E_ARGUMENT, "weights: %g of frame %zu is not finite", static_cast<double>(weights[i]), i);
      error.frame = i;
      return DR_E_ARGUMENT;
    }
  return DR_OK;
}

// Outputs in our version of the struct; `count` goes back to the caller's.
dr_status read_outputs(dr_context& c, const dr_tensor_out* from, size_t stride, size_t n) {
  return read_array(from, stride, n, "outputs", c.outs, c.error);
}
void give_back(const dr_context& c, dr_tensor_out* to, size_t stride) {
  for (size_t i = 0; i < c.outs.size(); ++i) write_struct(c.outs[i], reinterpret_cast<char*>(to) + i * stride);
}

// A decode or merge on the CPU.
struct host_decode {
  const dr_decode_options& options;
  // Of a prepared call: whose frames they must be, the caller's workspace, and whether its outputs, all dense, were checked before.
  const dr::batch* batch = nullptr;
  void* workspace = nullptr;
  size_t workspace_size = 0;
  bool checked = false;
  const std::vector<dr::out_range>* ranges = nullptr;  // of its outputs, if they were bound

  dr::trace_span span(const char* stage) const { return {options.trace, options.trace_user, stage}; }
  dr::pool& workers(dr_context& c) const { return batch ? c.workers_for(*batch) : *c.workers; }
  // A sound frame, of which what is asked for is left.
  dr_status check(dr::frame_view& f, std::span<const dr_tensor_out> outs, dr::sparse_outputs sparse,
                  dr_error& error) const {
    if (const dr_status s = check_tag(f, options, error)) return s;
    if (batch)
      if (const dr_status s = dr::check_frame(*batch, f, error)) return s;
    if (const dr_status s = dr::keep_range(f, options, outs.size(), error)) return s;
    return checked ? DR_OK : dr::check_outputs(f, outs, sparse, error);
  }
};

// Outputs lie apart, and no frame in one of them.
dr_status check_apart(dr_context& c, std::span<const dr::frame_view> frames, std::span<const dr_bytes> where,
                      std::span<const dr_tensor_out> outs, const std::vector<dr::out_range>* ranges) {
  if (!ranges)
    if (const dr_status s = dr::list_ranges(outs, c.ranges, c.error)) return s;
  for (size_t i = 0; i < frames.size(); ++i) {
    const void* const at = where.empty() ? frames[i].data : where[i].data;
    if (!dr::check_apart(ranges ? *ranges : c.ranges, at, frames[i].frame_size, c.error)) continue;
    if (frames.size() == 1) return c.error.code;
    c.error.frame = i;
    return prefix(c.error, "frame %zu: ", i);
  }
  return DR_OK;
}

dr_status too_small(dr_error& error, size_t size, uint64_t needed) {
  fail(error, DR_E_CAPACITY, "workspace: %zu bytes, but these frames need %" PRIu64, size, needed);
  error.needed = needed;
  return DR_E_CAPACITY;
}

// Into c.rows, and c.rooms to deliver them from.
dr_status decode_frames(dr_context& c, std::span<const dr::frame_view> frames, std::span<const dr_tensor_out> outs,
                        const host_decode& how) {
  dr::trace_span span = how.span("decode");
  dr::pool& workers = how.workers(c);
  uint64_t bytes = 0;
  if (const dr_status s = dr::decode_workspace(frames, outs, how.options, workers.workers(), bytes, c.error)) return s;
  if (const dr_status s = check_apart(c, frames, {}, outs, how.ranges)) return s;
  void* workspace = how.workspace;
  if (how.batch) {
    if (!workspace || how.workspace_size < bytes) return too_small(c.error, workspace ? how.workspace_size : 0, bytes);
  } else {
    if (const dr_status s = c.reserve(bytes)) return s;
    workspace = c.workspace;
  }
  dr::arena memory(workspace, bytes);
  size_t n = 0;
  for (const auto& f : frames) n += f.rows.size();
  c.rows.resize(n);
  c.rooms.resize(workers.workers());
  if (const dr_status s = dr::decode_rows(frames, outs.size(), workers, memory, c.rows.data(), c.rooms.data(), c.error))
    return s;
  if (!span.listened()) return DR_OK;
  for (const auto& f : frames)
    for (const auto& row : f.rows) {
      const auto& plan = f.plans[row.plan];
      span.bytes += row.support * (4 + uint64_t{plan.width} * dr::value_size(plan.dtype));
    }
  return DR_OK;
}

uint64_t bytes_of(std::span<const dr_tensor_out> outs) {
  uint64_t bytes = 0;
  for (const dr_tensor_out& o : outs) {
    const uint64_t row = uint64_t{std::max(1u, o.width)} * dr::value_size(o.dtype);
    const uint64_t index = o.index_dtype == DR_U64 || o.index_dtype == DR_I64 ? 8 : 4;
    bytes += o.index_dtype ? o.count * (row + index) : o.universe * row;
  }
  return bytes;
}

dr_status decode_on_host(dr_context& c, const void* frame, size_t size, const host_decode& how,
                         std::span<dr_tensor_out> outs) {
  c.frames.resize(std::max<size_t>(1, c.frames.size()));
  dr::frame_view& f = c.frames[0];
  {
    dr::trace_span span = how.span("header");
    if (const dr_status s = read_sound_frame(frame, size, f, c.error, header_room(how.options))) return s;
    if (const dr_status s = how.check(f, outs, dr::sparse_outputs::one_frame, c.error)) return s;
    span.bytes = f.frame_size;
  }
  if (const dr_status s = decode_frames(c, {&f, 1}, outs, how)) return s;
  dr::trace_span span = how.span("deliver");
  dr::deliver(f, c.rows.data(), c.rooms.data(), how.workers(c), outs);
  span.bytes = bytes_of(outs);
  return DR_OK;
}

dr_status merge_on_host(dr_context& c, std::span<const dr_bytes> frames, const float* weights, const host_decode& how,
                        std::span<dr_tensor_out> outs) {
  c.frames.resize(std::max(frames.size(), c.frames.size()));
  const std::span<dr::frame_view> views(c.frames.data(), frames.size());
  for (size_t i = 0; how.options.flags & DR_DECODE_ADD && i < outs.size(); ++i)
    if (outs[i].index_dtype) {
      fail(c.error, DR_E_ARGUMENT, "output %zu: it is sparse, and nothing can be added to it", i);
      c.error.tensor = i;
      return DR_E_ARGUMENT;
    }
  {
    dr::trace_span span = how.span("header");
    uint64_t room = header_room(how.options);
    for (size_t i = 0; i < frames.size(); ++i) {
      dr_status s = read_sound_frame(frames[i].data, frames[i].size, views[i], c.error, room);
      room -= std::min(room, views[i].memory());
      if (!s) s = how.check(views[i], outs, dr::sparse_outputs::unions, c.error);
      span.bytes += views[i].frame_size;
      if (!s) continue;
      c.error.frame = i;
      return prefix(c.error, "frame %zu: ", i);
    }
  }
  uint64_t rows = 0;
  if (frames.empty())
    if (const dr_status s = dr::check_outputs(outs, dr::sparse_outputs::unions, rows, c.error)) return s;
  if (const dr_status s = decode_frames(c, views, outs, how)) return s;
  dr::trace_span span = how.span("merge");
  dr::pool& workers = how.workers(c);
  if (const dr_status s = dr::count_unions(views, c.rows.data(), c.rooms.data(), workers, outs, c.error)) return s;
  // Every frame is sound, and there is room: from here on nothing fails.
  dr::merge(views, c.rows.data(), weights, how.options.flags & DR_DECODE_ADD, c.rooms.data(), workers, outs);
  span.bytes = bytes_of(outs);
  return DR_OK;
}

// ---- Prepared decode ----------------------------------------------------------------------------------------

dr_status decode_on_its_device(dr_context& c, const dr_batch& batch, const dr::target& where,
                               const dr::prepared_frames& frames, const dr_decode_options& options,
                               std::span<const dr_tensor_out> outs, const dr::prepared_memory& memory,
                               dr_result* result) {
  uint64_t left = options.max_elements;
  for (const dr::tensor_shape& s : batch.prepared.shapes) {
    if (options.max_elements && s.elements() > left)
      return fail(c.error, DR_E_CAPACITY, "frame: more than %" PRIu64 " elements; the limit is %" PRIu64,
                  options.max_elements - left, options.max_elements);
    left -= options.max_elements ? s.elements() : 0;
  }
  for (size_t i = 0; i < frames.list.size(); ++i)
    if (!frames.list[i].data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
  if (options.flags & DR_DECODE_TAG)
    return fail(c.error, DR_E_UNSUPPORTED, "options: a prepared decode on a device compares no tags; dr_decode does");
  if (!memory.checked)
    if (const dr_status s = dr::check_batch_outputs(batch, outs, c.error)) return s;
  if (!memory.ranges)
    if (const dr_status s = dr::list_ranges(outs, c.ranges, c.error)) return s;
  for (size_t i = 0; i < frames.list.size(); ++i) {
    const dr_bytes& f = frames.list[i];
    // How long the frame is only the device knows; no longer than the batch's.
    const uint64_t size = std::min<uint64_t>(f.size, batch.prepared.layout[1].frame_bound);
    if (!dr::check_apart(memory.ranges ? *memory.ranges : c.ranges, f.data, size, c.error)) continue;
    c.error.frame = i;
    return prefix(c.error, "frame %zu: ", i);
  }
  dr::decode_request request{frames.list, frames.weights};
  request.copies = frames.copies;
  request.adds = !frames.copies && (options.flags & DR_DECODE_ADD);
  const uint64_t limit = options.max_workspace ? options.max_workspace : UINT64_MAX;
  dr::device_queue queue{where.where, nullptr, where.stream};
  return dr::decode_on_device(batch.frames, request, outs, queue, memory.workspace,
                              std::min<uint64_t>(memory.workspace_size, limit), result, c.on_device.decoding, c.error);
}

// On the CPU the result says what came of f; on a device the kernels tell it, and what went wrong before is in the status alone.
template <class F>
dr_status telling(dr_context& c, const dr::target& where, dr_result* result, F&& f) {
  if (where.where) return f();
  dr_result told;
  if (const dr_status s = read_struct(result, "result", told, c.error)) return s;
  const dr_status status = guarded(c.error, f);
  if (result) write_struct(dr::result_of(status, {}, c.error), result);
  return status;
}

dr_status run_prepared(dr_context& c, const dr_batch& batch, const dr::target& where, const dr::prepared_frames& frames,
                       const dr_decode_options* options, std::span<dr_tensor_out> outs,
                       const dr::prepared_memory& memory, dr_result* result) {
  dr_decode_options option;
  if (const dr_status s = read_options(options, option, c.error)) return s;
  if (batch.by_host)
    return fail(c.error, DR_E_UNSUPPORTED, "batch: the CPU does its plan for a device; dr_decode and dr_merge do it");
  if (option.tensors || option.first_tensor)
    return fail(c.error, DR_E_UNSUPPORTED, "options: a prepared decode is of all tensors; dr_decode is of some");
  if (!frames.list.data() && !frames.list.empty()) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
  if (const dr_status s = check_weights(frames.weights, frames.list.size(), c.error)) return s;
  if (where.where) return decode_on_its_device(c, batch, where, frames, option, outs, memory, result);
  if (outs.size() != batch.prepared.shapes.size())
    return fail(c.error, DR_E_ARGUMENT, "%zu outputs; the batch has %zu tensors", outs.size(),
                batch.prepared.shapes.size());
  if (reinterpret_cast<uintptr_t>(memory.workspace) % dr::arena::alignment)
    return fail(c.error, DR_E_ARGUMENT, "workspace is not aligned to 64 bytes");
  if (frames.list.empty() && !memory.checked)  // otherwise each frame is the occasion
    if (const dr_status s = dr::check_batch_outputs(batch, outs, c.error)) return s;
  const host_decode how{option,         &batch.prepared, memory.workspace, memory.workspace_size,
                        memory.checked, memory.ranges};
  return frames.copies ? decode_on_host(c, frames.list[0].data, frames.list[0].size, how, outs)
                       : merge_on_host(c, frames.list, frames.weights, how, outs);
}

// What dr_batch_decode and dr_batch_merge have in common.
dr_status decode_batch(dr_context* context, const dr_batch* batch, const dr_place* place,
                       const dr::prepared_frames& frames, const dr_decode_options* options, dr_tensor_out* outs,
                       size_t stride, size_t n, const dr::prepared_memory& memory, dr_result* result) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr::target where;
    if (const dr_status s = find_target(place, where, c.error)) return s;
    return telling(c, where, result, [&]() -> dr_status {
      if (!batch) return fail(c.error, DR_E_ARGUMENT, "batch is NULL");
      if (batch->where != where.where)
        return fail(c.error, DR_E_ARGUMENT, "place: not the one that the batch was prepared for");
      if (const dr_status s = read_outputs(c, outs, stride, n)) return s;
      if (const dr_status s = run_prepared(c, *batch, where, frames, options, c.outs, memory, result)) return s;
      if (!where.where) give_back(c, outs, stride);
      return DR_OK;
    });
  });
}

}  // namespace

dr_status dr::check_batch_outputs(const dr_batch& batch, std::span<const dr_tensor_out> outs, dr_error& error) {
  const dr::batch& b = batch.prepared;
  if (outs.size() != b.shapes.size())
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the batch has %zu tensors", outs.size(), b.shapes.size());
  if (!batch.where) return check_outputs(common_frame(b), outs, sparse_outputs::unions, error);
  for (size_t i = 0; i < outs.size(); ++i) {
    const dr_tensor_out& o = outs[i];
    const tensor_shape& s = b.shapes[i];
    if (o.index_dtype || o.flags || o.universe != s.universe || std::max(1u, o.width) != s.width ||
        !is_value_type(o.dtype) || (!o.values && s.universe) ||
        reinterpret_cast<uintptr_t>(o.values) % value_size(o.dtype)) {
      fail(error, o.flags ? DR_E_UNSUPPORTED : DR_E_ARGUMENT,
           "output %zu: not dense, not of its tensor's shape, no type of values, unknown flags, NULL or misaligned", i);
      error.tensor = i;
      return error.code;
    }
  }
  return DR_OK;
}

dr_status dr::decode_room(const dr_batch& batch, size_t k, size_t& bytes, dr_error& error) {
  if (k > merged_max) return fail(error, DR_E_ARGUMENT, "k: %zu frames; at most %zu", k, merged_max);
  if (batch.by_host)
    return fail(
        error, DR_E_UNSUPPORTED,
        "batch: of a plan that the CPU does for its device (DR_PLACE_ALLOW_HOST); dr_decode and dr_merge decode it");
  if (batch.where) {
    bytes = device_decode_workspace(batch.frames, k);
    return DR_OK;
  }
  uint64_t size = 0;
  if (const dr_status s = decode_workspace(batch.prepared, k, size, error)) return s;
  bytes = static_cast<size_t>(size);
  return DR_OK;
}

dr_status dr::decode_prepared(dr_context& c, const dr_batch& batch, const target& where, const prepared_frames& frames,
                              const dr_decode_options* options, std::span<dr_tensor_out> outs,
                              const prepared_memory& memory, dr_result* result) {
  return telling(c, where, result,
                 [&] { return run_prepared(c, batch, where, frames, options, outs, memory, result); });
}

dr_status dr_batch_merge_workspace(const dr_batch* batch, size_t k, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!batch || !bytes) return fail(e, DR_E_ARGUMENT, "%s is NULL", batch ? "bytes" : "batch");
    return dr::decode_room(*batch, k, *bytes, e);
  });
}

dr_status dr_batch_decode(dr_context* context, const dr_batch* batch, const dr_place* place, const void* frame,
                          size_t size, const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n,
                          void* workspace, size_t workspace_size, dr_result* result) {
  const dr_bytes bytes{frame, size};
  return decode_batch(context, batch, place, {{&bytes, 1}, nullptr, true}, options, outs, stride, n,
                      {workspace, workspace_size, false, nullptr}, result);
}

dr_status dr_batch_merge(dr_context* context, const dr_batch* batch, const dr_place* place, const dr_bytes* frames,
                         const float* weights, size_t k, const dr_decode_options* options, dr_tensor_out* outs,
                         size_t stride, size_t n, void* workspace, size_t workspace_size, dr_result* result) {
  return decode_batch(context, batch, place, {{frames, k}, weights, false}, options, outs, stride, n,
                      {workspace, workspace_size, false, nullptr}, result);
}

namespace {

// Frames of whatever shape, in device memory: their headers come to the host, which waits for them, and for the end.
dr_status decode_unknown(dr_context& c, const dr::target& target, const dr::decode_request& request,
                         const dr_decode_options& option, std::span<dr_tensor_out> outs) {
  dr::device& where = *target.where;
  const auto failed = [&](dr_status s) { return s ? fail(c.error, s, "device: %s", where.reason()) : DR_OK; };
  std::vector<dr::frame_view> views(request.frames.size());
  std::vector<std::vector<uint8_t>> headers(views.size());
  bool by_host = false;
  if (option.tensors || option.first_tensor)
    return fail(c.error, DR_E_UNSUPPORTED, "options: a device decodes all tensors of a frame; the CPU does some");
  const auto sparse = request.copies ? dr::sparse_outputs::one_frame : dr::sparse_outputs::none;
  if (uint64_t total = 0; views.empty())
    if (const dr_status s = dr::check_outputs(outs, sparse, total, c.error)) return s;
  uint64_t room = header_room(option);
  for (size_t i = 0; i < views.size(); ++i) {
    const dr_bytes& f = request.frames[i];
    if (!f.data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
    constexpr size_t usual = 65536;
    dr_status s = DR_E_CORRUPT;
    for (size_t part = std::min(f.size, usual); s; part = f.size) {
      headers[i].resize(part);
      if (part)
        if (const dr_status e = failed(where.copy(target.stream, headers[i].data(), f.data, part))) return e;
      if (const dr_status e = failed(where.wait(target.stream))) return e;
      s = dr::read_header(headers[i].data(), part, f.size, views[i], c.error, room);
      if (part == f.size) break;
    }
    room -= std::min(room, views[i].memory());
    // Of a frame without rows all is here, so no kernel has to verify it.
    if (!s && views[i].rows.empty()) s = read_sound_frame(headers[i].data(), headers[i].size(), views[i], c.error);
    if (!s && views[i].tensors == 1 && outs.size() > 1)
      s = fail(c.error, DR_E_UNSUPPORTED, "frame: one tensor for many outputs (bucket=flat) has no CUDA path");
    if (!s) s = check_tag(views[i], option, c.error);
    if (!s) s = dr::check_outputs(views[i], outs, sparse, c.error);
    if (s) {
      if (request.copies) return s;
      c.error.frame = i;
      return prefix(c.error, "frame %zu: ", i);
    }
  }
  uint64_t bytes = 0;
  if (const dr_status s = dr::decode_workspace(views, outs, option, 1, bytes, c.error)) return s;
  if (const dr_status s = check_apart(c, views, request.frames, outs, nullptr)) return s;
  std::vector<dr::decode_shape> shapes;
  for (const dr::frame_view& f : views) {
    bool host_would_do = false;
    if (const dr_status s = dr::shape_of_frame(f, shapes.emplace_back(), host_would_do, c.error)) {
      if (!(host_would_do && target.allows_host)) return s;
      by_host = true;
    }
  }
  if (by_host) {
    std::vector<std::vector<uint8_t>> kept;
    if (const dr_status s = dr::fetch_frames(request.frames, where, target.stream, kept, c.error)) return s;
    std::vector<dr_bytes> frames;
    for (const auto& k : kept) frames.push_back({k.data(), k.size()});
    dr::host_outputs host;
    if (const dr_status s = host.fetch(outs, request.adds, where, target.stream, c.error)) return s;
    const host_decode how{option};
    if (const dr_status s = request.copies ? decode_on_host(c, frames[0].data, frames[0].size, how, host.own)
                                           : merge_on_host(c, frames, request.weights, how, host.own))
      return s;
    return host.give_back(outs, where, target.stream, c.error);
  }
  // Frames of one shape go together; otherwise each is judged before the first is added.
  dr::join_shapes(shapes);
  const auto run = [&](const dr::decode_shape& shape, const dr::decode_request& part) -> dr_status {
    const uint64_t room = dr::device_decode_workspace(shape, part.frames.size()), behind = (room + 63) / 64 * 64;
    return c.on_device.lend(target, behind + sizeof(dr_result), c.error, [&](void* at, uint64_t) -> dr_status {
      auto* const result = reinterpret_cast<dr_result*>(static_cast<std::byte*>(at) + behind);
      dr_result told{.struct_size = sizeof told};
      if (const dr_status s = failed(where.copy(target.stream, result, &told, sizeof told))) return s;
      dr::device_queue queue{target.where, nullptr, target.stream};
      if (const dr_status s =
              dr::decode_on_device(shape, part, outs, queue, at, room, result, c.on_device.decoding, c.error))
        return s;
      if (const dr_status s = failed(where.copy(target.stream, &told, result, sizeof told))) return s;
      if (const dr_status s = failed(where.wait(target.stream))) return s;
      if (!told.status) return DR_OK;
      const dr_fault fault{sizeof fault, told.status, told.stream, told.where, told.what, nullptr};
      fail(c.error, fault, told.tensor, nullptr);
      if (!request.copies) {
        c.error.frame = static_cast<uint64_t>(part.frames.data() - request.frames.data()) + told.frame;
        prefix(c.error, "frame %" PRIu64 ": ", c.error.frame);
      }
      return told.status;
    });
  };
  if (views.empty() || shapes.size() == 1) {
    if (shapes.empty()) {
      if (request.adds) return DR_OK;
      for (const dr_tensor_out& o : outs)
        if (const dr_status s = failed(
                where.clear(target.stream, o.values, o.universe * std::max(1u, o.width) * dr::value_size(o.dtype))))
          return s;
      return failed(where.wait(target.stream));
    }
    if (const dr_status s = run(shapes[0], request)) return s;
  } else {
    for (const bool delivers : {false, true})
      for (size_t i = 0; i < views.size(); ++i) {
        dr::decode_request part = request;
        part.frames = request.frames.subspan(i, 1);
        part.weights = request.weights ? request.weights + i : nullptr;
        part.adds = request.adds || i > 0;
        part.delivers = delivers;
        if (const dr_status s = run(shapes[i], part)) return s;
      }
  }
  if (!request.copies) return DR_OK;
  size_t row = 0;
  for (dr_tensor_out& o : outs) o.count = views[0].rows[row++].support;
  return DR_OK;
}

}  // namespace

dr_status dr_decode(dr_context* context, const dr_place* place, const void* frame, size_t size,
                    const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr::target target;
    if (const dr_status s = find_target(place, target, c.error)) return s;
    dr_decode_options option;
    if (const dr_status s = read_options(options, option, c.error)) return s;
    if (const dr_status s = read_outputs(c, outs, stride, n)) return s;
    const dr_bytes bytes{frame, size};
    dr::decode_request request{{&bytes, 1}};
    request.copies = true;
    if (const dr_status s = target.where ? decode_unknown(c, target, request, option, c.outs)
                                         : decode_on_host(c, frame, size, host_decode{option}, c.outs))
      return s;
    give_back(c, outs, stride);
    return DR_OK;
  });
}

dr_status dr_merge(dr_context* context, const dr_place* place, const dr_bytes* frames, const float* weights, size_t k,
                   const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr::target target;
    if (const dr_status s = find_target(place, target, c.error)) return s;
    if (!frames && k) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
    if (const dr_status s = check_weights(weights, k, c.error)) return s;
    dr_decode_options option;
    if (const dr_status s = read_options(options, option, c.error)) return s;
    if (const dr_status s = read_outputs(c, outs, stride, n)) return s;
    dr::decode_request request{{frames, k}, weights};
    request.adds = option.flags & DR_DECODE_ADD;
    if (const dr_status s = target.where ? decode_unknown(c, target, request, option, c.outs)
                                         : merge_on_host(c, {frames, k}, weights, host_decode{option}, c.outs))
      return s;
    give_back(c, outs, stride);
    return DR_OK;
  });
}
