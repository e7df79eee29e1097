// Decode and merge: of any frame, and of a prepared batch's.
#include "api/frame_checks.hpp"
#include "api/run_decode.hpp"
#include "capi/handles.hpp"
#include "patch/base_check.hpp"

using dr::fail;
using dr::in_context;
using dr::reported;

namespace {

// The common part of dr_decode and dr_merge.
dr_status decode_frames(dr_context& c, const dr_place* place, dr::decode_request request,
                        const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  dr::target target;
  if (const dr_status s = dr::read_place(place, target, c.error)) return s;
  if (!request.frames.data() && !request.frames.empty()) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
  if (const dr_status s = dr::check_weights(request.weights, request.frames.size(), c.error)) return s;
  dr_decode_options option;
  if (const dr_status s = dr::read_options(options, option, c.error)) return s;
  if (const dr_status s = dr::read_flags(option, request, c.error)) return s;
  if (const dr_status s = dr::read_array(outs, stride, n, "outputs", c.outs, c.error)) return s;
  if (const dr_status s = dr::decode_any(c, target, request, option, c.outs)) return s;
  dr::write_array(c.outs, outs, stride);
  return DR_OK;
}

// The common part of dr_batch_decode and dr_batch_merge.
dr_status decode_batch(dr_context* context, const dr_batch* batch, const dr_place* place, dr::decode_request request,
                       const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n,
                       const dr::prepared_memory& memory, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  dr_context& c = *context;
  return dr::with_result(c, dr::is_cpu(place), result, [&]() -> dr_status {
    dr::target target;
    if (const dr_status s = dr::read_place(place, target, c.error)) return s;
    if (const dr_status s = dr::check_place(batch, target, c.error)) return s;
    if (const dr_status s = dr::read_array(outs, stride, n, "outputs", c.outs, c.error)) return s;
    dr_decode_options option;
    if (const dr_status s = dr::read_options(options, option, c.error)) return s;
    if (const dr_status s = dr::read_flags(option, request, c.error)) return s;
    if (const dr_status s = dr::decode_placed(c, *batch, target, request, option, c.outs, memory, result)) return s;
    if (!target.where) dr::write_array(c.outs, outs, stride);
    return DR_OK;
  });
}

}  // namespace

dr_status dr_batch_merge_workspace(const dr_batch* batch, size_t k, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!batch || !bytes) return fail(e, DR_E_ARGUMENT, "%s is NULL", batch ? "bytes" : "batch");
    return batch->decode_room(k, *bytes, e);
  });
}

dr_status dr_batch_decode(dr_context* context, const dr_batch* batch, const dr_place* place, const void* frame,
                          size_t size, const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n,
                          void* workspace, size_t workspace_size, dr_result* result) {
  const dr_bytes bytes{frame, size};
  return decode_batch(context, batch, place, dr::decode_of(bytes), options, outs, stride, n,
                      {workspace, workspace_size}, result);
}

dr_status dr_batch_merge(dr_context* context, const dr_batch* batch, const dr_place* place, const dr_bytes* frames,
                         const float* weights, size_t k, const dr_decode_options* options, dr_tensor_out* outs,
                         size_t stride, size_t n, void* workspace, size_t workspace_size, dr_result* result) {
  return decode_batch(context, batch, place, {{frames, k}, weights}, options, outs, stride, n,
                      {workspace, workspace_size}, result);
}

dr_status dr_decode(dr_context* context, const dr_place* place, const void* frame, size_t size,
                    const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) {
    const dr_bytes bytes{frame, size};
    return decode_frames(c, place, dr::decode_of(bytes), options, outs, stride, n);
  });
}

dr_status dr_merge(dr_context* context, const dr_place* place, const dr_bytes* frames, const float* weights, size_t k,
                   const dr_decode_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) {
    return decode_frames(c, place, {{frames, k}, weights}, options, outs, stride, n);
  });
}

dr_status dr_base_sums(const void* values, uint64_t bytes, uint64_t* sums, size_t capacity, dr_error* error) {
  return dr::reported(error, [&](dr_error& e) -> dr_status {
    if (bytes && (!values || !sums)) return dr::fail(e, DR_E_ARGUMENT, "%s is NULL", values ? "sums" : "values");
    if (const uint64_t chunks = dr::base_chunks(bytes); chunks > capacity)
      return dr::fail(e, DR_E_ARGUMENT, "sums: room for %zu; %" PRIu64 " bytes have %" PRIu64, capacity, bytes, chunks);
    dr::base_sums(values, bytes, sums);
    return DR_OK;
  });
}
uint64_t dr_base_check(const uint64_t* sums, size_t n) { return sums ? dr::fold_sums(sums, n) : 0; }
