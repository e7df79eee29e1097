// Decode and merge of a prepared batch's frames.
#include <algorithm>
#include <cinttypes>

#include "api/frame_checks.hpp"
#include "api/run_decode.hpp"

namespace dr {
namespace {

dr_status check_elements(const batch& b, uint64_t elements_max, dr_error& error) {
  if (!elements_max) return DR_OK;
  uint64_t left = elements_max;
  for (const tensor_shape& s : b.shapes) {
    if (s.elements() > left)
      return fail(error, DR_E_CAPACITY, "frame: elements exceed max_elements = %" PRIu64, elements_max);
    left -= s.elements();
  }
  return DR_OK;
}

dr_status decode_on_its_device(context& c, const placed_batch& b, const target& t, const decode_request& request,
                               const dr_decode_options& options, std::span<const tensor_out> outs,
                               const prepared_memory& memory, dr_result* result) {
  if (const dr_status s = check_elements(b, options.max_elements, c.error)) return s;
  for (size_t i = 0; i < request.frames.size(); ++i)
    if (!request.frames[i].data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
  if (request.votes) return fail(c.error, DR_E_UNSUPPORTED, "options: DR_DECODE_VOTE runs on the CPU only");
  if (const dr_status s = check_applied(request, options, c.error)) return s;
  if (const dr_status s = check_patch(b.patches(), options, c.error)) return s;
  if (options.flags & DR_DECODE_TAG)
    return fail(c.error, DR_E_UNSUPPORTED, "options: a prepared decode on a device cannot compare tags; use dr_decode");
  if (!memory.checked)
    if (const dr_status s = b.check_outputs(outs, c.error)) return s;
  // How long a frame is only the device knows; no longer than the batch's.
  const auto frame_at = [&](size_t i) {
    const dr_bytes& f = request.frames[i];
    return dr_bytes{f.data, std::min<size_t>(f.size, b.layout[1].frame_bound)};
  };
  if (const dr_status s = check_apart(c, request.frames.size(), frame_at, outs, memory.ranges, true)) return s;
  const uint64_t limit = options.max_workspace ? options.max_workspace : UINT64_MAX;
  device_queue queue{t.where, nullptr, t.stream};
  return decode_on_device(b.frames, request, outs, queue, memory.workspace,
                          std::min<uint64_t>(memory.workspace_size, limit), result, c.on_device.decoding, c.error);
}

}  // namespace

dr_status decode_placed(context& c, const placed_batch& b, const target& t, const decode_request& request,
                        const dr_decode_options& options, std::span<tensor_out> outs, const prepared_memory& memory,
                        dr_result* result) {
  if (b.by_host)
    return fail(c.error, DR_E_UNSUPPORTED,
                "batch: its plan runs on the CPU (DR_PLACE_ALLOW_HOST); use dr_decode or dr_merge");
  if (options.tensors || options.first_tensor)
    return fail(c.error, DR_E_UNSUPPORTED, "options: a prepared decode decodes all tensors; use dr_decode for some");
  if (!request.frames.data() && !request.frames.empty()) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
  if (const dr_status s = check_weights(request.weights, request.frames.size(), c.error)) return s;
  if (t.where) return decode_on_its_device(c, b, t, request, options, outs, memory, result);
  if (outs.size() != b.shapes.size())
    return fail(c.error, DR_E_ARGUMENT, "%zu outputs; the batch has %zu tensors", outs.size(), b.shapes.size());
  if (reinterpret_cast<uintptr_t>(memory.workspace) % arena::alignment)
    return fail(c.error, DR_E_ARGUMENT, "workspace is not aligned to 64 bytes");
  if (request.frames.empty() && !memory.checked)  // otherwise they are checked with the first frame
    if (const dr_status s = b.check_outputs(outs, c.error)) return s;
  return decode_on_host(c, request, host_decode{options, &b, memory}, outs);
}

}  // namespace dr
