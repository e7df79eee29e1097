// Decode and merge: of any frame, and of a prepared batch's.
#include <algorithm>

#include "capi/handles.hpp"
#include "pipeline/host_detour.hpp"

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

dr_status read_sound_frame(const void* frame, size_t size, dr::frame_view& out, dr_error& error) {
  if (!frame) return fail(error, DR_E_ARGUMENT, "frame is NULL");
  if (const dr_status s = dr::read_frame(static_cast<const uint8_t*>(frame), size, out, error)) return s;
  if (out.status)
    return fail(error, DR_E_PEER, "frame: the rank that sent it could not encode (%s): %s", dr::status_name(out.status),
                out.message);
  return DR_OK;
}

// Outputs in our version of the struct; `count` goes back to the caller's.
dr_status read_outputs(dr_context& c, const dr_tensor_out* from, size_t stride, size_t n) {
  return read_array(from, stride, n, "outputs", c.outs, c.error);
}
void give_back(const dr_context& c, dr_tensor_out* to, size_t stride) {
  for (size_t i = 0; i < c.outs.size(); ++i) write_struct(c.outs[i], reinterpret_cast<char*>(to) + i * stride);
}

// Into c.rows, and c.rooms to deliver them from.
dr_status decode_frames(dr_context& c, std::span<const dr::frame_view> frames, const dr_decode_options& options) {
  uint64_t bytes = 0;
  if (const dr_status s = dr::decode_workspace(frames, options, c.workers->workers(), bytes, c.error)) return s;
  if (const dr_status s = c.reserve(bytes)) return s;
  size_t n = 0;
  for (const auto& f : frames) n += f.rows.size();
  c.rows.resize(n);
  c.rooms.resize(c.workers->workers());
  dr::arena memory(c.workspace, c.workspace_size);
  return dr::decode_rows(frames, *c.workers, memory, c.rows.data(), c.rooms.data(), c.error);
}

// ---- Prepared decode, on a GPU ------------------------------------------------------------------------------

dr_status on_its_device(const dr_batch* batch, const dr_place* place, dr::target& target, dr_error& error) {
  if (!batch) return fail(error, DR_E_ARGUMENT, "batch is NULL");
  if (const dr_status s = find_target(place, target, error)) return s;
  if (batch->where != target.where)
    return fail(error, DR_E_ARGUMENT, "place: not the one that the batch was prepared for");
  if (!batch->runs_on_device())
    return fail(error, DR_E_UNSUPPORTED, "batch: prepared decode is for GPUs; dr_decode and dr_merge do it on the CPU");
  return DR_OK;
}

// Outputs of a prepared decode: dense, and shaped as the batch's tensors.
dr_status check_batch_outputs(const dr::batch& b, std::span<const dr_tensor_out> outs, dr_error& error) {
  if (outs.size() != b.shapes.size())
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the batch has %zu tensors", outs.size(), b.shapes.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    const dr_tensor_out& o = outs[i];
    const dr::tensor_shape& s = b.shapes[i];
    if (o.index_dtype || o.flags || o.universe != s.universe || std::max(1u, o.width) != s.width ||
        (o.dtype != s.dtype && o.dtype != DR_F32) || (!o.values && s.universe) ||
        reinterpret_cast<uintptr_t>(o.values) % dr::value_size(o.dtype)) {
      fail(error, DR_E_ARGUMENT,
           "output %zu: not dense, not of its tensor's shape and type (or f32), NULL or misaligned", i);
      error.tensor = i;
      return DR_E_ARGUMENT;
    }
  }
  return DR_OK;
}

dr_status run_batch_decode(dr_context& c, const dr_batch* batch, const dr_place* place,
                           const dr::decode_request& request, const dr_tensor_out* outs, size_t stride, size_t n,
                           void* workspace, size_t workspace_size, dr_result* result) {
  dr::target target;
  if (const dr_status s = on_its_device(batch, place, target, c.error)) return s;
  if (const dr_status s = read_array(outs, stride, n, "outputs", c.outs, c.error)) return s;
  if (const dr_status s = check_batch_outputs(batch->prepared, c.outs, c.error)) return s;
  dr::device_queue queue{target.where, nullptr, target.stream};
  return dr::decode_on_device(batch->frames, request, c.outs, queue, workspace, workspace_size, result,
                              c.on_device.decoding, c.error);
}

}  // namespace

dr_status dr_batch_merge_workspace(const dr_batch* batch, size_t k, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!batch || !bytes) return fail(e, DR_E_ARGUMENT, "%s is NULL", batch ? "bytes" : "batch");
    if (k > dr::merged_max) return fail(e, DR_E_ARGUMENT, "k: %zu frames; at most %zu", k, dr::merged_max);
    dr::decode_shape shape;
    if (!batch->runs_on_device())
      if (const dr_status s = dr::shape_of_batch(batch->prepared, shape, e)) return s;
    *bytes = dr::device_decode_workspace(batch->runs_on_device() ? batch->frames : shape, k);
    return DR_OK;
  });
}

dr_status dr_batch_decode(dr_context* context, const dr_batch* batch, const dr_place* place, const void* frame,
                          size_t size, const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n,
                          void* workspace, size_t workspace_size, dr_result* result) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr_decode_options option;
    if (const dr_status s = read_options(options, option, c.error)) return s;
    if (!frame) return fail(c.error, DR_E_ARGUMENT, "frame is NULL");
    const dr_bytes bytes{frame, size};
    dr::decode_request request{{&bytes, 1}};
    request.copies = true;
    return run_batch_decode(c, batch, place, request, outs, stride, n, workspace, workspace_size, result);
  });
}

dr_status dr_batch_merge(dr_context* context, const dr_batch* batch, const dr_place* place, const dr_bytes* frames,
                         const float* weights, size_t k, const dr_decode_options* options, dr_tensor_out* outs,
                         size_t stride, size_t n, void* workspace, size_t workspace_size, dr_result* result) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr_decode_options option;
    if (const dr_status s = read_options(options, option, c.error)) return s;
    if (!frames && k) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
    for (size_t i = 0; i < k; ++i)
      if (!frames[i].data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
    dr::decode_request request{{frames, k}, weights};
    request.adds = option.flags & DR_DECODE_ADD;
    return run_batch_decode(c, batch, place, request, outs, stride, n, workspace, workspace_size, result);
  });
}

namespace {

dr_status decode_on_host(dr_context& c, const void* frame, size_t size, const dr_decode_options& options,
                         std::span<dr_tensor_out> outs) {
  c.frames.resize(std::max<size_t>(1, c.frames.size()));
  dr::frame_view& f = c.frames[0];
  if (const dr_status s = read_sound_frame(frame, size, f, c.error)) return s;
  if (const dr_status s = dr::check_outputs(f, outs, false, c.error)) return s;
  if (const dr_status s = decode_frames(c, {&f, 1}, options)) return s;
  dr::deliver(f, c.rows.data(), c.rooms.data(), *c.workers, outs);
  return DR_OK;
}

dr_status merge_on_host(dr_context& c, std::span<const dr_bytes> frames, const float* weights,
                        const dr_decode_options& option, std::span<dr_tensor_out> outs) {
  c.frames.resize(std::max(frames.size(), c.frames.size()));
  const std::span<dr::frame_view> views(c.frames.data(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    dr_status s = read_sound_frame(frames[i].data, frames[i].size, views[i], c.error);
    if (!s) s = dr::check_outputs(views[i], outs, true, c.error);
    if (!s) continue;
    c.error.frame = i;
    return prefix(c.error, "frame %zu: ", i);
  }
  if (const dr_status s = decode_frames(c, views, option)) return s;
  // Every frame is sound: from here on nothing fails.
  dr::merge(views, c.rows.data(), weights, option.flags & DR_DECODE_ADD, c.rooms.data(), *c.workers, outs);
  return DR_OK;
}

// Frames of whatever shape, in device memory: their headers come to the host, which waits for them, and for the end.
dr_status decode_unknown(dr_context& c, const dr::target& target, const dr::decode_request& request,
                         const dr_decode_options& option, std::span<dr_tensor_out> outs) {
  dr::device& where = *target.where;
  const auto failed = [&](dr_status s) { return s ? fail(c.error, s, "device: %s", where.reason()) : DR_OK; };
  std::vector<dr::frame_view> views(request.frames.size());
  std::vector<std::vector<uint8_t>> headers(views.size());
  bool by_host = false;
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
      s = dr::read_header(headers[i].data(), part, f.size, views[i], c.error);
      if (part == f.size) break;
    }
    // Of a frame without rows all is here, so no kernel has to verify it.
    if (!s && views[i].rows.empty()) s = read_sound_frame(headers[i].data(), headers[i].size(), views[i], c.error);
    if (!s && views[i].tensors == 1 && outs.size() > 1)
      s = fail(c.error, DR_E_UNSUPPORTED, "frame: one tensor for many outputs (bucket=flat) has no CUDA path");
    if (!s) s = dr::check_outputs(views[i], outs, !request.copies, c.error);
    if (s) {
      if (request.copies) return s;
      c.error.frame = i;
      return prefix(c.error, "frame %zu: ", i);
    }
  }
  if (option.max_elements || option.max_workspace) {
    uint64_t bytes = 0;
    if (const dr_status s = dr::decode_workspace(views, option, 1, bytes, c.error)) return s;
  }
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
    if (const dr_status s = request.copies ? decode_on_host(c, frames[0].data, frames[0].size, option, host.own)
                                           : merge_on_host(c, frames, request.weights, option, host.own))
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
                                         : decode_on_host(c, frame, size, option, c.outs))
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
    dr_decode_options option;
    if (const dr_status s = read_options(options, option, c.error)) return s;
    if (const dr_status s = read_outputs(c, outs, stride, n)) return s;
    dr::decode_request request{{frames, k}, weights};
    request.adds = option.flags & DR_DECODE_ADD;
    if (const dr_status s = target.where ? decode_unknown(c, target, request, option, c.outs)
                                         : merge_on_host(c, {frames, k}, weights, option, c.outs))
      return s;
    give_back(c, outs, stride);
    return DR_OK;
  });
}
