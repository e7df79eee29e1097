// Decode and merge of frames of whatever shape in device memory.
#include <algorithm>
#include <cinttypes>

#include "api/frame_checks.hpp"
#include "api/host_detour.hpp"
#include "api/run_decode.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

struct device_call {
  context& c;
  const target& at;
  const decode_request& request;
  const dr_decode_options& options;
  std::span<tensor_out> outs;
  device& where = *at.where;
  std::vector<frame_view> views = std::vector<frame_view>(request.frames.size());
  std::vector<std::vector<uint8_t>> headers = std::vector<std::vector<uint8_t>>(views.size());
  std::vector<decode_shape> shapes{};

  dr_status check(dr_status s) const { return check_device(s, where, c.error); }
  dr_status copy(void* to, const void* from, uint64_t size) const {
    return check(where.copy(at.stream, to, from, size));
  }
  dr_status wait() const { return check(where.wait(at.stream)); }
  // The first output that is to be a union of supports; outs.size(): none.
  size_t first_union() const {
    if (request.copies || request.adds) return outs.size();
    const auto sparse = [](const tensor_out& o) { return o.index_dtype != 0; };
    return static_cast<size_t>(std::find_if(outs.begin(), outs.end(), sparse) - outs.begin());
  }
  sparse_outputs sparse() const {
    return request.copies                 ? sparse_outputs::one_frame
           : first_union() == outs.size() ? sparse_outputs::none
                                          : sparse_outputs::unions;
  }

  // Copies as much of a frame as holds its header. `judged`: the status that the reader returned.
  dr_status fetch_header(size_t i, uint64_t memory_max, dr_status& judged) {
    constexpr size_t usual = 65536;
    const dr_bytes& f = request.frames[i];
    judged = DR_E_CORRUPT;
    for (size_t part = std::min(f.size, usual); judged; part = f.size) {
      headers[i].resize(part);
      if (part)
        if (const dr_status s = copy(headers[i].data(), f.data, part)) return s;
      if (const dr_status s = wait()) return s;
      judged = read_header(headers[i].data(), part, f.size, views[i], c.error, memory_max);
      if (part == f.size) break;
    }
    return DR_OK;
  }

  dr_status check_frame(size_t i) {
    frame_view& f = views[i];
    // Of a frame without rows all is here, so no kernel has to verify it.
    if (f.rows.empty())
      if (const dr_status s = read_sound_frame({headers[i].data(), headers[i].size()}, f, c.error)) return s;
    if (const dr_status s = check_tag(f, options, c.error)) return s;
    if (const dr_status s = check_patch(is_patch(f), options, c.error)) return s;
    return check_outputs(f, outs, sparse(), c.error);
  }

  dr_status read_headers() {
    if (uint64_t rows = 0; views.empty()) {
      if (const dr_status s = check_merged_types(outs, c.error)) return s;
      if (const dr_status s = check_outputs(outs, sparse(), rows, c.error)) return s;
    }
    uint64_t room = header_room(options);
    for (size_t i = 0; i < views.size(); ++i) {
      if (!request.frames[i].data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
      dr_status judged = DR_OK;
      if (const dr_status s = fetch_header(i, room, judged)) return s;
      room -= std::min(room, views[i].memory());
      if (!judged) judged = check_frame(i);
      if (judged) return request.copies ? judged : blame_frame(c.error, i);
    }
    uint64_t bytes = 0;  // (Only for the limits.)
    if (const dr_status s = decode_workspace(views, outs, options, 1, bytes, c.error)) return s;
    const auto frame_at = [&](size_t i) { return dr_bytes{request.frames[i].data, views[i].frame_size}; };
    return check_apart(c, views.size(), frame_at, outs, nullptr, views.size() != 1);
  }

  dr_status list_shapes(bool& by_host) {
    for (const frame_view& f : views) {
      bool host_would_do = false;
      if (const dr_status s = shape_of_frame(f, outs.size(), shapes.emplace_back(), host_would_do, c.error)) {
        if (!host_would_do || !at.allows_host) return s;
        by_host = true;
      }
      for (decode_shape::row& r : shapes.back().rows)
        r.to_pairs = r.tensor < outs.size() && !shapes.back().cuts && outs[r.tensor].index_dtype;
    }
    return DR_OK;
  }

  dr_status detour() const {
    std::vector<std::vector<uint8_t>> on_host;
    if (const dr_status s = fetch_frames(request.frames, where, at.stream, on_host, c.error)) return s;
    std::vector<dr_bytes> frames;
    frames.reserve(on_host.size());
    for (const auto& f : on_host) frames.push_back({f.data(), f.size()});
    decode_request here = request;
    here.frames = frames;
    host_outputs host;
    const bool reads = request.adds || (options.flags & DR_DECODE_APPLY);
    if (const dr_status s = host.fetch(outs, reads, where, at.stream, c.error)) return s;
    if (const dr_status s = decode_on_host(c, here, host_decode{options}, host.own)) return s;
    return host.copy_back(outs, where, at.stream, c.error);
  }

  dr_status clear_outputs() const {
    if (request.adds) return DR_OK;
    for (const tensor_out& o : outs) {
      const uint64_t size = o.universe * std::max(1u, o.width) * value_size(o.dtype);
      if (const dr_status s = check(where.clear(at.stream, o.values, size))) return s;
    }
    return wait();
  }

  // Runs frames of one shape, and waits for their result. first: their place among all.
  dr_status run(const decode_shape& shape, const decode_request& part, size_t first) const {
    const uint64_t room = device_decode_workspace(shape, part.frames.size()), behind = (room + 63) / 64 * 64;
    if (options.max_workspace && room > options.max_workspace) {
      fail(c.error, DR_E_CAPACITY, "workspace: %" PRIu64 " bytes on the device exceed the limit of %" PRIu64, room,
           uint64_t{options.max_workspace});
      c.error.needed = room;
      return DR_E_CAPACITY;
    }
    return c.on_device.lend(at, behind + sizeof(dr_result), c.error, [&](void* workspace, uint64_t) -> dr_status {
      auto* const result = reinterpret_cast<dr_result*>(static_cast<std::byte*>(workspace) + behind);
      dr_result reported{.struct_size = sizeof reported};
      if (const dr_status s = copy(result, &reported, sizeof reported)) return s;
      device_queue queue{at.where, nullptr, at.stream};
      if (const dr_status s =
              decode_on_device(shape, part, outs, queue, workspace, room, result, c.on_device.decoding, c.error))
        return s;
      if (const dr_status s = copy(&reported, result, sizeof reported)) return s;
      if (const dr_status s = wait()) return s;
      if (!reported.status) return DR_OK;
      if (reported.status == DR_E_ARGUMENT && shape.patches) return wrong_base(reported);
      const dr_fault fault{sizeof fault, reported.status, reported.stream, reported.where, reported.what, nullptr};
      fail(c.error, fault, reported.tensor, nullptr);
      return request.copies ? reported.status : blame_frame(c.error, first + reported.frame);
    });
  }

  // A base that is not the patch's, which is the one fault of an argument that a device finds in a decode.
  dr_status wrong_base(const dr_result& r) const {
    fail(c.error, DR_E_ARGUMENT,
         "tensor %" PRIu64 ": its check is %016" PRIx64 "; the patch is for a base of check %016" PRIx64, r.tensor,
         r.what, r.where);
    c.error.tensor = r.tensor;
    c.error.what = r.what;
    c.error.reason = DR_REASON_WRONG_BASE;
    return DR_E_ARGUMENT;
  }

  // Frames of one shape go together; otherwise all are validated before the first is added.
  dr_status run_all() {
    if (views.empty()) return clear_outputs();
    join_shapes(shapes);
    if (shapes.size() == 1) return run(shapes[0], request, 0);
    for (const bool delivers : {false, true})
      for (size_t i = 0; i < views.size(); ++i) {
        decode_request part = request;
        part.frames = request.frames.subspan(i, 1);
        part.weights = request.weights ? request.weights + i : nullptr;
        part.adds = request.adds || i > 0;
        part.delivers = delivers;
        if (const dr_status s = run(shapes[i], part, i)) return s;
      }
    return DR_OK;
  }
};

}  // namespace

dr_status decode_from_device(context& c, const target& t, const decode_request& request,
                             const dr_decode_options& options, std::span<tensor_out> outs) {
  if (options.tensors || options.first_tensor)
    return fail(c.error, DR_E_UNSUPPORTED, "options: a device decodes all tensors of a frame; use the CPU for some");
  if (const dr_status s = check_applied(request, options, c.error)) return s;
  device_call call{c, t, request, options, outs};
  bool by_host = request.votes;
  if (by_host && !t.allows_host)
    return fail(
        c.error, DR_E_UNSUPPORTED,
        "options: DR_DECODE_VOTE runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with copies and a wait");
  if (const size_t i = call.first_union(); i < outs.size()) {
    by_host = true;
    if (!t.allows_host) {
      fail(c.error, DR_E_UNSUPPORTED,
           "output %zu: is sparse; a union of supports is made on the CPU only; DR_PLACE_ALLOW_HOST makes it "
           "there, with copies and a wait",
           i);
      c.error.tensor = i;
      return DR_E_UNSUPPORTED;
    }
  }
  if (const dr_status s = call.read_headers()) return s;
  if (const dr_status s = call.list_shapes(by_host)) return s;
  if (const dr_status s = check_bare(outs, c.error)) return s;
  if (by_host) return call.detour();
  if (const dr_status s = call.run_all()) return s;
  for (tensor_out& o : outs) o.count = 0;
  for (const frame_view& f : call.views)
    for (const wire_row& r : f.rows)
      if (!is_cut(f, outs.size())) outs[r.tensor].count += r.support;
  return DR_OK;
}

dr_status check_bare(std::span<const tensor_out> outs, dr_error& error) {
  for (size_t i = 0; i < outs.size(); ++i)
    if (outs[i].sums || outs[i].history) {
      fail(error, DR_E_UNSUPPORTED, "output %zu: has %s, which only the CPU keeps", i,
           outs[i].sums ? "sums" : "a history");
      error.tensor = i;
      return DR_E_UNSUPPORTED;
    }
  return DR_OK;
}

dr_status decode_any(context& c, const target& t, const decode_request& request, const dr_decode_options& options,
                     std::span<tensor_out> outs) {
  return t.where ? decode_from_device(c, t, request, options, outs)
                 : decode_on_host(c, request, host_decode{options}, outs);
}

}  // namespace dr
