// A batch bound to its memory: what a training loop calls each step.
#include <algorithm>

#include "capi/handles.hpp"

using dr::fail;
using dr::find_target;
using dr::in_context;
using dr::read_array;

struct dr_binding {
  dr_context& context;
  const dr_batch& batch;
  dr::target where;
  bool encodes = false, decodes = false;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  std::vector<dr::out_range> ranges;  // of outs
  dr_tensor_out* told = nullptr;      // the caller's outputs, which get the counts
  size_t told_stride = 0;
  bool dense = true;  // all outputs are
  size_t frames = 1;  // that a merge takes
  void* workspace = nullptr;
  size_t workspace_size = 0;

  dr_binding(dr_context& c, const dr_batch& b) : context(c), batch(b) {}
  ~dr_binding() {
    if (workspace && where.where)
      where.where->release(workspace);
    else if (workspace)
      context.options.release(context.options.user, workspace, workspace_size);
  }
  dr_binding(const dr_binding&) = delete;
  dr_binding& operator=(const dr_binding&) = delete;

  dr_status take_tensors(const dr_tensor* list, size_t stride, size_t n) {
    encodes = list || n == 0;
    if (!encodes) return DR_OK;
    if (const dr_status s = read_array(list, stride, n, "tensors", tensors, context.error)) return s;
    if (const dr_status s = dr::check_tensors(batch.prepared, tensors, where.where, context.error)) return s;
    std::vector<dr::state_range> states(dr::states_of(batch.prepared));
    if (const dr_status s = dr::check_states_apart(batch.prepared, tensors, states.data(), context.error)) return s;
    workspace_size = static_cast<size_t>(where.where ? batch.device_workspace : batch.prepared.workspace);
    return DR_OK;
  }
  dr_status take_outputs(dr_tensor_out* list, size_t stride, size_t n) {
    decodes = list || n == 0;
    if (!decodes) return DR_OK;
    size_t room = 0;
    if (const dr_status s = dr::decode_room(batch, frames, room, context.error)) return s;
    if (const dr_status s = read_array(list, stride, n, "outputs", outs, context.error)) return s;
    if (const dr_status s = dr::check_batch_outputs(batch, outs, context.error)) return s;
    if (const dr_status s = dr::list_ranges(outs, ranges, context.error)) return s;
    dense = std::none_of(outs.begin(), outs.end(), [](const dr_tensor_out& o) { return o.index_dtype != 0; });
    told = list;
    told_stride = stride;
    workspace_size = std::max(workspace_size, room);
    return DR_OK;
  }
  dr_status take_workspace() {
    if (!workspace_size) return DR_OK;
    workspace = where.where ? where.where->allocate(workspace_size)
                            : context.options.allocate(context.options.user, workspace_size, dr::arena::alignment);
    return workspace ? DR_OK
                     : fail(context.error, DR_E_MEMORY, "binding: no %zu bytes of workspace to be had", workspace_size);
  }

  dr_status decode(const dr::prepared_frames& list, const dr_decode_options* options, dr_result* result) {
    const dr::prepared_memory memory{workspace, workspace_size, dense, &ranges};
    if (const dr_status s = dr::decode_prepared(context, batch, where, list, options, outs, memory, result)) return s;
    if (where.where) return DR_OK;
    for (size_t i = 0; i < outs.size(); ++i) {
      dr_tensor_out* const to = reinterpret_cast<dr_tensor_out*>(reinterpret_cast<char*>(told) + i * told_stride);
      if (dr::size_of_struct(to) >= offsetof(dr_tensor_out, count) + sizeof to->count)
        std::memcpy(&to->count, &outs[i].count, sizeof to->count);
    }
    return DR_OK;
  }
};

dr_status dr_binding_create(dr_context* context, const dr_batch* batch, const dr_place* place, const dr_tensor* tensors,
                            size_t stride, dr_tensor_out* outs, size_t out_stride, size_t n, size_t frames,
                            dr_binding** binding) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!batch || !binding) return fail(c.error, DR_E_ARGUMENT, "%s is NULL", batch ? "binding" : "batch");
    *binding = nullptr;
    auto b = std::make_unique<dr_binding>(c, *batch);
    if (const dr_status s = find_target(place, b->where, c.error)) return s;
    if (batch->where != b->where.where)
      return fail(c.error, DR_E_ARGUMENT, "place: not the one that the batch was prepared for");
    if (!tensors && !outs && n)
      return fail(c.error, DR_E_ARGUMENT, "tensors and outs are NULL: there is nothing to do");
    if (n != batch->prepared.shapes.size())
      return fail(c.error, DR_E_ARGUMENT, "n is %zu; the batch has %zu tensors", n, batch->prepared.shapes.size());
    b->frames = std::max<size_t>(1, frames);
    if (const dr_status s = b->take_tensors(tensors, stride, n)) return s;
    if (const dr_status s = b->take_outputs(outs, out_stride, n)) return s;
    if (const dr_status s = b->take_workspace()) return s;
    *binding = b.release();
    return DR_OK;
  });
}

void dr_binding_destroy(dr_binding* binding) { delete binding; }

dr_status dr_binding_encode(dr_binding* binding, const dr_call* call, void* frame, size_t capacity, dr_result* result) {
  if (!binding) return DR_E_ARGUMENT;
  dr_binding& b = *binding;
  if (!b.encodes) return fail(b.context.error, DR_E_ARGUMENT, "binding: it has no tensors to encode");
  return dr::encode_prepared(b.context, b.batch, b.where, call, b.tensors,
                             {b.workspace, b.workspace_size, true, nullptr}, frame, capacity, result);
}

dr_status dr_binding_decode(dr_binding* binding, const void* frame, size_t size, const dr_decode_options* options,
                            dr_result* result) {
  if (!binding) return DR_E_ARGUMENT;
  return in_context(&binding->context, [&](dr_context& c) -> dr_status {
    if (!binding->decodes) return fail(c.error, DR_E_ARGUMENT, "binding: it has no outputs to decode to");
    const dr_bytes bytes{frame, size};
    return binding->decode({{&bytes, 1}, nullptr, true}, options, result);
  });
}

dr_status dr_binding_merge(dr_binding* binding, const dr_bytes* frames, const float* weights, size_t k,
                           const dr_decode_options* options, dr_result* result) {
  if (!binding) return DR_E_ARGUMENT;
  return in_context(&binding->context, [&](dr_context& c) -> dr_status {
    if (!binding->decodes) return fail(c.error, DR_E_ARGUMENT, "binding: it has no outputs to merge into");
    if (k > binding->frames)
      return fail(c.error, DR_E_ARGUMENT, "k: %zu frames; the binding was made for %zu", k, binding->frames);
    return binding->decode({{frames, k}, weights, false}, options, result);
  });
}
