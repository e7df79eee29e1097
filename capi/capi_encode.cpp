// Bounds, batches, encode.
#include "capi/encode_call.hpp"

using dr::fail;
using dr::in_context;
using dr::method_of;
using dr::read_struct;
using dr::reported;
using dr::write_struct;

namespace {

// Clears the faults: an encode sets only those that it finds.
dr_status clear_faults(const dr_call& call, size_t n, dr_error& error) {
  constexpr size_t least = dr::first_of<dr_fault>.size;
  if (call.fault_stride < least)
    return fail(error, DR_E_ARGUMENT, "call: fault_stride %zu is smaller than the %zu bytes of a dr_fault",
                call.fault_stride, least);
  for (size_t i = 0; i < n; ++i) {
    auto* const at = reinterpret_cast<char*>(call.faults) + i * call.fault_stride;
    if (const size_t size = dr::size_of_struct(at); size < least || size > call.fault_stride) {
      fail(error, DR_E_ARGUMENT, "call: fault %zu: struct_size is %zu, not in %zu … %zu (set it to sizeof(dr_fault))",
           i, size, least, call.fault_stride);
      error.tensor = i;
      error.what = size;
      return DR_E_ARGUMENT;
    }
    write_struct(dr::no_fault(), at);
  }
  return DR_OK;
}

// Prepares tensors for a place. A bound is known then, too.
dr_status place_batch(dr_context& c, const dr_plan* plan, const dr_place* place, const dr_tensor* list, size_t stride,
                      size_t n, uint64_t segment_rows, dr_batch& out) {
  dr::target target;
  if (const dr_status s = dr::read_place(place, target, c.error)) return s;
  dr::tensor_list tensors;
  if (const dr_status s = dr::read_tensors(list, stride, n, tensors, c.error)) return s;
  return out.place(c.request_for(method_of(plan), segment_rows), tensors, target, c.error);
}

}  // namespace

dr_status dr::read_call(const encode_arguments& a, bool on_cpu, dr_call& c, encode_request& out, dr_error& error) {
  out.frame = static_cast<uint8_t*>(a.frame);
  out.capacity = a.capacity;
  out.result = a.result;
  if (const dr_status s = read_struct(a.call, "call", c, error)) return s;
  out.call = {c.step, c.seed, c.private_seed, c.tag, c.flags, c.trace, c.trace_user, c.faults, c.fault_stride};
  if (dr_result checked; on_cpu)
    if (const dr_status s = read_struct(a.result, "result", checked, error)) return s;
  if ((c.flags & ~call_flags) || c.reserved)
    return fail(error, DR_E_UNSUPPORTED, "call: unknown flags 0x%x, or reserved is not 0", c.flags);
  if (c.flags & DR_CALL_STEP_AT) {
    if (!c.step || c.step % alignof(uint64_t))
      return fail(error, DR_E_ARGUMENT,
                  "call: DR_CALL_STEP_AT, but step is 0x%" PRIx64 ", not the address of a uint64_t", c.step);
    if (on_cpu) set_step(out.call, *reinterpret_cast<const uint64_t*>(c.step));
  }
  if (!a.frame && (a.capacity || !on_cpu)) return fail(error, DR_E_ARGUMENT, "frame is NULL");
  if ((c.flags & DR_CALL_FIT) && !on_cpu)
    return fail(error, DR_E_UNSUPPORTED, "call: DR_CALL_FIT has no path on a GPU");
  return c.faults ? clear_faults(c, a.tensors, error) : DR_OK;
}

dr_status dr::check_repeated(const placed_batch& batch, const dr_call& call, std::span<const dr_tensor> tensors,
                             dr_error& error) {
  if (const dr_status s = batch.check_segment_rows(call.segment_rows, error)) return s;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (const dr_plan* const own = tensors[i].plan)
      if (const dr_status s = batch.check_plan(i, *own->bound, error)) return s;
  return DR_OK;
}

void dr::finish_call(const encode_arguments& a, const encode_request& request, dr_status status,
                     const encode_result& made, const dr_error& error) {
  dr_result result = result_of(status, made, error);
  if (status) result.size = write_failure(request, status, error);
  set_result(a.result, result);
}

dr_status dr_bound(dr_context* context, const dr_plan* plan, const dr_call* call, const dr_place* place,
                   const dr_tensor* list, size_t stride, size_t n, size_t* bytes) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!bytes) return fail(c.error, DR_E_ARGUMENT, "bytes is NULL");
    dr_call of_call;
    if (const dr_status s = read_struct(call, "call", of_call, c.error)) return s;
    dr_batch b;
    if (const dr_status s = place_batch(c, plan, place, list, stride, n, of_call.segment_rows, b)) return s;
    *bytes = b.bound();
    return DR_OK;
  });
}

dr_status dr_encode(dr_context* context, const dr_plan* plan, const dr_call* call, const dr_place* place,
                    const dr_tensor* list, size_t stride, size_t n, void* frame, size_t capacity, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  dr_context& c = *context;
  return dr::run_call(
      c, {call, n, frame, capacity, result}, dr::is_cpu(place),
      [&](dr::target& t) { return dr::read_place(place, t, c.error); },
      [&](const dr_call& read, const dr::encode_request& request, dr::encode_result& made) -> dr_status {
        if (const dr_status s = dr::read_tensors(list, stride, n, c.tensors, c.error)) return s;
        return dr::encode_list(c, c.request_for(method_of(plan), read.segment_rows), request, made);
      });
}

dr_status dr_batch_create(dr_context* context, const dr_plan* plan, const dr_place* place, const dr_tensor* list,
                          size_t stride, size_t n, uint64_t segment_rows, dr_batch** batch) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!batch) return fail(c.error, DR_E_ARGUMENT, "batch is NULL");
    *batch = nullptr;
    auto b = std::make_unique<dr_batch>();
    if (const dr_status s = place_batch(c, plan, place, list, stride, n, segment_rows, *b)) return s;
    if (const dr_status s = b->load_decode(c.error)) return s;
    *batch = b.release();
    return DR_OK;
  });
}

void dr_batch_destroy(dr_batch* batch) { delete batch; }

dr_status dr_batch_describe(const dr_batch* batch, dr_batch_info* info, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!batch || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", batch ? "info" : "batch");
    dr_batch_info i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    write_struct(batch->info(), info);
    return DR_OK;
  });
}

dr_status dr_batch_encode(dr_context* context, const dr_batch* batch, const dr_call* call, const dr_place* place,
                          const dr_tensor* list, size_t stride, size_t n, void* workspace, size_t workspace_size,
                          void* frame, size_t capacity, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  dr_context& c = *context;
  return dr::run_call(
      c, {call, n, frame, capacity, result}, dr::is_cpu(place),
      [&](dr::target& t) { return dr::read_place(place, t, c.error); },
      [&](const dr_call& read, const dr::encode_request& request, dr::encode_result& made) -> dr_status {
        if (const dr_status s = dr::check_place(batch, request.where, c.error)) return s;
        if (reinterpret_cast<uintptr_t>(workspace) % dr::arena::alignment)
          return fail(c.error, DR_E_ARGUMENT, "workspace is not aligned to 64 bytes");
        auto& tensors = c.tensors.views;
        if (const dr_status s = dr::read_array(list, stride, n, "tensors", tensors, c.error)) return s;
        if (const dr_status s = dr::check_repeated(*batch, read, tensors, c.error)) return s;
        return dr::encode_placed(c, *batch, request, tensors, workspace, workspace_size, made);
      });
}
