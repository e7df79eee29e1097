#include "api/run_encode.hpp"

#include <algorithm>
#include <functional>

#include "api/host_detour.hpp"

namespace dr {
namespace {

size_t write_failure_at(uint8_t* at, const encode_call& call, dr_status status, const dr_error& error) {
  return write_status_frame(status, error.message, call.flags & DR_CALL_TAG, call.tag, at);
}

bool requests_status_frame(const encode_request& r) {
  return (r.call.flags & DR_CALL_STATUS_FRAME) && r.frame && r.capacity >= status_frame_max;
}

// Grows the host's lists before anything is enqueued: work on a device cannot be undone when memory runs out.
dr_status make_room(const placed_batch& b, device_encode_scratch& host, dr_error& error) {
  size_t by_blocks = 0;
  for (size_t i = 0; i < b.rows.size(); ++i) by_blocks += block_of(b, i) != 0;
  const decltype(host.seen) now{b.rows.size(),   b.wire.size(), b.on_device.headers[1].head.size(),
                                b.shapes.size(), by_blocks,     b.patches() ? b.rows.size() : 0};
  if (std::equal(now.begin(), now.end(), host.seen.begin(), std::less_equal<>())) return DR_OK;
  uint32_t launches = 0;
  if (const dr_status s = count_device_launches(b, b.on_device, nullptr, host, launches, error)) return s;
  std::transform(now.begin(), now.end(), host.seen.begin(), host.seen.begin(),
                 [](size_t a, size_t b) { return std::max(a, b); });
  return DR_OK;
}

// The CPU encodes for the device; then frame and result go there.
dr_status detour(context& c, const placed_batch& b, const encode_request& r, std::span<const tensor_view> tensors) {
  device& where = *r.where.where;
  void* const stream = r.where.stream;
  encode_result made;
  encode_call call = r.call;
  if (call.flags & DR_CALL_STEP_AT) {
    uint64_t step = 0;
    dr_status s = where.copy(stream, &step, reinterpret_cast<const void*>(call.step), sizeof step);
    if (!s) s = where.wait(stream);
    if (const dr_status failed = check_device(s, where, c.error)) return failed;
    set_step(call, step);
  }
  const dr_status status =
      encode_by_host(b, call, tensors, c.workers_for(b), where, stream, r.frame, r.capacity, made, c.error);
  dr_result result = result_of(status, made, c.error);
  uint8_t status_frame[status_frame_max];
  dr_status copied = DR_OK;
  if (status && requests_status_frame(r)) {
    result.size = write_failure_at(status_frame, call, status, c.error);
    copied = where.copy(stream, r.frame, status_frame, result.size);
  }
  if (r.result && !copied) copied = set_result_by_host(result, where, stream, r.result);
  const dr_status waited = where.wait(stream);
  return status ? status : copied ? copied : waited;
}

}  // namespace

dr_status encode_placed(context& c, const placed_batch& b, const encode_request& r,
                        std::span<const tensor_view> tensors, void* workspace, uint64_t workspace_size,
                        encode_result& made) {
  if (!r.where.where)
    return encode(b, r.call, tensors, c.workers_for(b), workspace, workspace_size, r.frame, r.capacity, made, c.error);
  if (b.by_host) return detour(c, b, r, tensors);
  if (const dr_status s = make_room(b, c.on_device.encoding, c.error)) return s;
  device_queue queue{r.where.where, nullptr, r.where.stream};
  return encode_on_device(b, b.on_device, r.call, tensors, queue, workspace, workspace_size, r.frame, r.capacity,
                          r.result, c.on_device.encoding, c.error);
}

dr_status encode_list(context& c, const batch_request& method, const encode_request& r, encode_result& made) {
  const placed_batch* b = nullptr;
  if (const dr_status s = c.batches.find(method, c.tensors, r.where, b, c.error)) return s;
  const auto run = [&](void* workspace, uint64_t size) {
    return encode_placed(c, *b, r, c.tensors.views, workspace, size, made);
  };
  if (b->by_host) return run(nullptr, 0);
  if (b->where) return c.on_device.lend(r.where, b->encode_room(), c.error, run);
  if (const dr_status s = c.reserve(b->workspace)) return s;
  return run(c.workspace().data(), c.workspace().size());
}

dr_result result_of(dr_status status, const encode_result& made, const dr_error& e) {
  if (!status)
    return {sizeof(dr_result), made.size, DR_OK, DR_STREAM_NONE, DR_NO_TENSOR, 0, 0, DR_NO_FRAME, 0, made.kept};
  return {sizeof(dr_result), 0, status, e.stream, e.tensor, e.where, e.what, e.frame, e.needed, 0};
}

size_t write_failure(const encode_request& r, dr_status status, const dr_error& error) {
  return requests_status_frame(r) ? write_failure_at(r.frame, r.call, status, error) : 0;
}

}  // namespace dr
