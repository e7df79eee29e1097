// Encode: of a call, and of a prepared batch.
#include <algorithm>

#include "capi/handles.hpp"
#include "container/frame.hpp"
#include "pipeline/host_detour.hpp"

using dr::fail;
using dr::find_target;
using dr::guarded;
using dr::in_context;
using dr::prepare_batch;
using dr::read_struct;
using dr::reported;
using dr::tensors;
using dr::write_struct;

namespace {

// The batch's bound, or a status frame if that is longer.
uint64_t bound_of(const dr::batch& b) { return std::max<uint64_t>(b.layout[1].frame_bound, dr::status_frame_max); }

struct encode_request {
  const dr_call* call;
  size_t tensors;
  const dr_place* place;
  void* frame;
  size_t capacity;
  dr_result* result;
  const dr::target* found = nullptr;  // the place, if it was found before
};

// So that only what is at fault says so.
dr_status clear_faults(const dr_call& call, size_t n, dr_error& error) {
  if (call.fault_stride < dr::struct_size_min)
    return fail(error, DR_E_ARGUMENT, "call: faults are %zu bytes apart, less than a struct", call.fault_stride);
  for (size_t i = 0; i < n; ++i) {
    auto* const at = reinterpret_cast<char*>(call.faults) + i * call.fault_stride;
    if (const size_t size = dr::size_of_struct(at); size < dr::struct_size_min || size > call.fault_stride) {
      fail(error, DR_E_ARGUMENT, "call: fault %zu: struct_size is %zu, which is not set or above the stride of %zu", i,
           size, call.fault_stride);
      error.tensor = i;
      error.what = size;
      return DR_E_ARGUMENT;
    }
    write_struct(dr::no_fault(), at);
  }
  return DR_OK;
}

// Runs `attempt` and, whatever came of it, fills the result and the status frame that the caller asked for. On a device the result is the
// kernels' to fill; what went wrong before they began is in the status alone.
template <class F>
dr_status finish_encode(dr_context& context, const encode_request& request, F&& attempt) {
  dr_call c{};
  dr::encode_result made;
  dr::target target;
  dr_result result{};
  const dr_status status = guarded(context.error, [&]() -> dr_status {
    if (context.lost()) [[unlikely]]
      return dr::fail_lost(context);
    if (request.found)
      target = *request.found;
    else if (const dr_status s = find_target(request.place, target, context.error))
      return s;
    if (!target.where)
      if (const dr_status s = read_struct(request.result, "result", result, context.error)) return s;
    if (const dr_status s = read_struct(request.call, "call", c, context.error)) return s;
    if ((c.flags & ~dr::call_flags) || c.reserved)
      return fail(context.error, DR_E_UNSUPPORTED, "call: unknown flags 0x%x, or reserved is not 0", c.flags);
    if (!request.frame && (request.capacity || target.where))
      return fail(context.error, DR_E_ARGUMENT, "frame is NULL");
    if ((c.flags & DR_CALL_FIT) && target.where)
      return fail(context.error, DR_E_UNSUPPORTED, "call: DR_CALL_FIT has no path on a GPU");
    if (c.faults)
      if (const dr_status s = clear_faults(c, request.tensors, context.error)) return s;
    const dr::encode_call call{c.step,  c.seed,       c.private_seed, c.tag,         c.flags,
                               c.trace, c.trace_user, c.faults,       c.fault_stride};
    return attempt(c, call, target, made);
  });
  if (target.where) return status;
  result = dr::result_of(status, made, context.error);
  if (status) {
    if ((c.flags & DR_CALL_STATUS_FRAME) && request.frame && request.capacity >= dr::status_frame_max)
      result.size = dr::write_status_frame(status, context.error.message, c.flags & DR_CALL_TAG, c.tag,
                                           static_cast<uint8_t*>(request.frame));
  }
  if (request.result && dr::size_of_struct(request.result) >= dr::struct_size_min) write_struct(result, request.result);
  return status;
}

dr_status run_encode(dr_context& context, const dr::batch& b, const dr::encode_call& call,
                     std::span<const dr_tensor> views, void* workspace, uint64_t workspace_size,
                     const encode_request& request, dr::encode_result& made) {
  return dr::encode(b, call, views, context.workers_for(b), workspace, workspace_size,
                    static_cast<uint8_t*>(request.frame), request.capacity, made, context.error);
}

dr_status run_on_device(dr_context& context, const dr_batch& b, const dr::encode_call& call, const dr::target& target,
                        std::span<const dr_tensor> views, void* workspace, uint64_t workspace_size,
                        const encode_request& request) {
  dr::device_queue queue{target.where, nullptr, target.stream};
  auto* const frame = static_cast<uint8_t*>(request.frame);
  if (!b.by_host)
    return dr::encode_on_device(b.prepared, b.headers, call, views, queue, workspace, workspace_size, frame,
                                request.capacity, request.result, context.on_device.encoding, context.error);
  dr::encode_result made;
  const dr_status s = dr::encode_by_host(b.prepared, call, views, context.workers_for(b.prepared), *target.where,
                                         target.stream, frame, request.capacity, made, context.error);
  dr_result result = dr::result_of(s, made, context.error);
  uint8_t said[dr::status_frame_max];
  dr_status copied = DR_OK;
  if (s && (call.flags & DR_CALL_STATUS_FRAME) && request.capacity >= sizeof said) {
    result.size = dr::write_status_frame(s, context.error.message, call.flags & DR_CALL_TAG, call.tag, said);
    copied = target.where->copy(target.stream, frame, said, result.size);
  }
  if (request.result && !copied) copied = dr::tell_by_host(result, *target.where, target.stream, request.result);
  const dr_status waited = target.where->wait(target.stream);
  return s ? s : copied ? copied : waited;
}

// What a prepared batch settled may be said again, but not otherwise.
dr_status check_prepared(const dr::batch& b, const dr_call& call, std::span<const dr_tensor> views, dr_error& error) {
  if (call.segment_rows && call.segment_rows != b.segment_rows) {
    fail(error, DR_E_ARGUMENT, "call: segments of %" PRIu64 " rows; the batch was prepared for %" PRIu64,
         call.segment_rows, b.segment_rows);
    error.what = call.segment_rows;
    return DR_E_ARGUMENT;
  }
  for (const dr::unit& u : b.units)
    for (size_t i = u.first_tensor; i < std::min<size_t>(u.first_tensor + u.tensors, views.size()); ++i) {
      const dr_plan* const own = views[i].plan;
      if (!own || own->bound.get() == u.method || own->bound->text == u.method->text) continue;
      fail(error, DR_E_ARGUMENT, "tensor %zu: its plan is %.80s; the batch was prepared for %.80s", i,
           own->bound->text.c_str(), u.method->text.c_str());
      error.tensor = i;
      return DR_E_ARGUMENT;
    }
  return DR_OK;
}

// The batch of these tensors: prepared before, if it is among the last few.
dr_status find_batch(dr_context& context, const dr_plan* plan, const tensors& t, uint64_t segment_rows,
                     const dr::target& target, const dr_batch*& out) {
  constexpr size_t most = 8;
  const auto method = plan ? plan->bound : nullptr;
  const auto same_shape = [](const dr_tensor& v, const dr::tensor_shape& s) {
    return v.dtype == s.dtype && v.index_dtype == s.index_dtype && std::max(1u, v.width) == s.width &&
           v.flags == s.flags && v.universe == s.universe && (!v.index_dtype || v.count == s.count);
  };
  auto& all = context.batches;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& c) {
    return c->method == method && c->segment_rows == segment_rows && c->prepared.where == target.where &&
           (!c->prepared.by_host || target.allows_host) && c->plans == t.plans &&
           std::equal(t.views.begin(), t.views.end(), c->shapes.begin(), c->shapes.end(), same_shape);
  });
  if (found != all.end()) {
    std::rotate(all.begin(), found, found + 1);
    out = &all.front()->prepared;
    return DR_OK;
  }
  auto made = std::make_unique<dr::cached_batch>();
  if (const dr_status s = prepare_batch(context, plan, t, segment_rows, made->prepared.prepared)) return s;
  if (const dr_status s = made->prepared.prepare_device(target, context.error)) return s;
  made->method = method;
  made->plans = t.plans;
  made->shapes = made->prepared.prepared.shapes;
  made->segment_rows = segment_rows;
  if (all.size() == most) all.pop_back();
  all.insert(all.begin(), std::move(made));
  out = &all.front()->prepared;
  return DR_OK;
}

}  // namespace

dr_status dr_bound(dr_context* context, const dr_plan* plan, const dr_call* call, const dr_place* place,
                   const dr_tensor* list, size_t stride, size_t n, size_t* bytes) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!bytes) return fail(c.error, DR_E_ARGUMENT, "bytes is NULL");
    dr_call of_call;
    if (const dr_status s = read_struct(call, "call", of_call, c.error)) return s;
    dr::target target;
    if (const dr_status s = find_target(place, target, c.error)) return s;
    tensors t;
    if (const dr_status s = t.read(list, stride, n, c.error)) return s;
    dr_batch b;
    if (const dr_status s = prepare_batch(c, plan, t, of_call.segment_rows, b.prepared)) return s;
    if (const dr_status s = b.prepare_device(target, c.error)) return s;
    *bytes = bound_of(b.prepared);
    return DR_OK;
  });
}

dr_status dr_encode(dr_context* context, const dr_plan* plan, const dr_call* call, const dr_place* place,
                    const dr_tensor* list, size_t stride, size_t n, void* frame, size_t capacity, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  const encode_request request{call, n, place, frame, capacity, result};
  return finish_encode(*context, request,
                       [&](const dr_call& c, const dr::encode_call& made_call, const dr::target& target,
                           dr::encode_result& made) -> dr_status {
                         tensors& t = context->list;
                         if (const dr_status s = t.read(list, stride, n, context->error)) return s;
                         const dr_batch* b = nullptr;
                         if (const dr_status s = find_batch(*context, plan, t, c.segment_rows, target, b)) return s;
                         if (!target.where) {
                           if (const dr_status s = context->reserve(b->prepared.workspace)) return s;
                           return run_encode(*context, b->prepared, made_call, t.views, context->workspace,
                                             context->workspace_size, request, made);
                         }
                         const auto run = [&](void* at, uint64_t size) {
                           return run_on_device(*context, *b, made_call, target, t.views, at, size, request);
                         };
                         if (b->by_host) return run(nullptr, 0);
                         return context->on_device.lend(target, b->device_workspace, context->error, run);
                       });
}

dr_status dr_batch_create(dr_context* context, const dr_plan* plan, const dr_place* place, const dr_tensor* list,
                          size_t stride, size_t n, uint64_t segment_rows, dr_batch** batch) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!batch) return fail(c.error, DR_E_ARGUMENT, "batch is NULL");
    *batch = nullptr;
    dr::target target;
    if (const dr_status s = find_target(place, target, c.error)) return s;
    tensors t;
    if (const dr_status s = t.read(list, stride, n, c.error)) return s;
    auto b = std::make_unique<dr_batch>();
    if (const dr_status s = prepare_batch(c, plan, t, segment_rows, b->prepared)) return s;
    if (const dr_status s = b->prepare_device(target, c.error)) return s;
    if (const dr_status s = b->prepare_decode(c.error)) return s;
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
    const dr::batch& b = batch->prepared;
    i = {};
    i.bound = bound_of(b);
    i.workspace = batch->where ? batch->device_workspace : b.workspace;
    i.launches = batch->launches;
    i.tensors = static_cast<uint32_t>(b.shapes.size());
    i.rows = static_cast<uint32_t>(b.rows.size());
    write_struct(i, info);
    return DR_OK;
  });
}

dr_status dr_batch_encode(dr_context* context, const dr_batch* batch, const dr_call* call, const dr_place* place,
                          const dr_tensor* list, size_t stride, size_t n, void* workspace, size_t workspace_size,
                          void* frame, size_t capacity, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  const encode_request request{call, n, place, frame, capacity, result};
  return finish_encode(
      *context, request,
      [&](const dr_call& c, const dr::encode_call& made_call, const dr::target& target,
          dr::encode_result& made) -> dr_status {
        if (!batch) return fail(context->error, DR_E_ARGUMENT, "batch is NULL");
        if (batch->where != target.where)
          return fail(context->error, DR_E_ARGUMENT, "place: not the one that the batch was prepared for");
        if (reinterpret_cast<uintptr_t>(workspace) % dr::arena::alignment)
          return fail(context->error, DR_E_ARGUMENT, "workspace is not aligned to 64 bytes");
        auto& views = context->list.views;
        if (const dr_status s = dr::read_array(list, stride, n, "tensors", views, context->error)) return s;
        if (const dr_status s = check_prepared(batch->prepared, c, views, context->error)) return s;
        if (target.where)
          return run_on_device(*context, *batch, made_call, target, views, workspace, workspace_size, request);
        return run_encode(*context, batch->prepared, made_call, views, workspace, workspace_size, request, made);
      });
}

dr_status dr::encode_prepared(dr_context& context, const dr_batch& batch, const target& where, const dr_call* call,
                              std::span<const dr_tensor> tensors, const prepared_memory& memory, void* frame,
                              size_t capacity, dr_result* result) {
  const encode_request request{call, tensors.size(), nullptr, frame, capacity, result, &where};
  return finish_encode(
      context, request,
      [&](const dr_call& c, const encode_call& made_call, const target&, encode_result& made) -> dr_status {
        if (const dr_status s = check_prepared(batch.prepared, c, tensors, context.error)) return s;
        encode_call bound = made_call;
        bound.checked = memory.checked && !batch.by_host;  // (there the states are not looked at before)
        return where.where ? run_on_device(context, batch, bound, where, tensors, memory.workspace,
                                           memory.workspace_size, request)
                           : run_encode(context, batch.prepared, bound, tensors, memory.workspace,
                                        memory.workspace_size, request, made);
      });
}
