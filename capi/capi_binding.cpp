// A batch bound to its memory: the calls of a training step.
#include "api/bound_batch.hpp"

#include "capi/encode_call.hpp"

using dr::fail;
using dr::in_context;

struct dr_binding : dr::bound_batch {
  using bound_batch::bound_batch;

  // The caller's outputs, which get the counts.
  dr_tensor_out* callers_outs = nullptr;
  size_t callers_stride = 0;
  // Room to read others into.
  std::vector<dr::tensor_view> next_tensors;
  std::vector<dr::tensor_out> next_outs;

  dr_status run(dr::decode_request request, const dr_decode_options* options, dr_result* result, const char* verb) {
    return dr::with_result(context, !where.where, result, [&]() -> dr_status {
      if (!decodes)
        return fail(context.error, DR_E_ARGUMENT, "binding: created without outputs, so it cannot %s", verb);
      if (request.frames.size() > frames)
        return fail(context.error, DR_E_ARGUMENT, "k: %zu frames; the binding was created for at most %zu",
                    request.frames.size(), frames);
      dr_decode_options option;
      if (const dr_status s = dr::read_options(options, option, context.error)) return s;
      if (const dr_status s = dr::read_flags(option, request, context.error)) return s;
      if (const dr_status s = decode(request, option, result)) return s;
      if (!where.where) write_counts();
      return DR_OK;
    });
  }

 private:
  void write_counts() const {
    for (size_t i = 0; i < outs.size(); ++i) {
      auto* const to = reinterpret_cast<dr_tensor_out*>(reinterpret_cast<char*>(callers_outs) + i * callers_stride);
      if (dr::size_of_struct(to) >= offsetof(dr_tensor_out, count) + sizeof to->count)
        std::memcpy(&to->count, &outs[i].count, sizeof to->count);
    }
  }
};

dr_status dr_binding_create(dr_context* context, const dr_batch* batch, const dr_place* place, const dr_tensor* tensors,
                            size_t stride, dr_tensor_out* outs, size_t out_stride, size_t n, size_t frames,
                            dr_binding** binding) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!batch || !binding) return fail(c.error, DR_E_ARGUMENT, "%s is NULL", batch ? "binding" : "batch");
    *binding = nullptr;
    auto b = std::make_unique<dr_binding>(c, *batch);
    if (const dr_status s = dr::read_place(place, b->where, c.error)) return s;
    if (const dr_status s = dr::check_place(batch, b->where, c.error)) return s;
    if (!tensors && !outs && n) return fail(c.error, DR_E_ARGUMENT, "tensors and outs are both NULL");
    if (n != batch->shapes.size())
      return fail(c.error, DR_E_ARGUMENT, "n is %zu; the batch was prepared for %zu tensors", n, batch->shapes.size());
    b->frames = std::max<size_t>(1, frames);
    if (tensors || !n) {
      if (const dr_status s = dr::read_array(tensors, stride, n, "tensors", b->tensors, c.error)) return s;
      if (const dr_status s = b->bind_tensors()) return s;
    }
    if (outs || !n) {
      if (const dr_status s = dr::read_array(outs, out_stride, n, "outputs", b->outs, c.error)) return s;
      if (const dr_status s = b->bind_outputs()) return s;
      b->callers_outs = outs;
      b->callers_stride = out_stride;
    }
    if (const dr_status s = b->allocate_workspace()) return s;
    *binding = b.release();
    return DR_OK;
  });
}

void dr_binding_destroy(dr_binding* binding) { delete binding; }

dr_status dr_binding_rebind(dr_binding* binding, const dr_tensor* tensors, size_t stride, dr_tensor_out* outs,
                            size_t out_stride, size_t n) {
  if (!binding) return DR_E_ARGUMENT;
  dr_binding& b = *binding;
  return in_context(&b.context, [&](dr::context& c) -> dr_status {
    if (n != b.batch.shapes.size())
      return fail(c.error, DR_E_ARGUMENT, "n is %zu; the batch was prepared for %zu tensors", n, b.batch.shapes.size());
    if ((tensors && !b.encodes) || (outs && !b.decodes))
      return fail(c.error, DR_E_ARGUMENT, "binding: created without %s; these cannot be replaced",
                  tensors && !b.encodes ? "tensors" : "outputs");
    if (tensors)
      if (const dr_status s = dr::read_array(tensors, stride, n, "tensors", b.next_tensors, c.error)) return s;
    if (outs)
      if (const dr_status s = dr::read_array(outs, out_stride, n, "outputs", b.next_outs, c.error)) return s;
    if (const dr_status s = b.rebind(tensors ? &b.next_tensors : nullptr, outs ? &b.next_outs : nullptr)) return s;
    if (!outs) return DR_OK;
    b.callers_outs = outs;
    b.callers_stride = out_stride;
    return DR_OK;
  });
}

dr_status dr_binding_encode(dr_binding* binding, const dr_call* call, void* frame, size_t capacity, dr_result* result) {
  if (!binding) return DR_E_ARGUMENT;
  dr_binding& b = *binding;
  const auto find_place = [&](dr::target& t) {
    t = b.where;
    return DR_OK;
  };
  return dr::run_call(b.context, {call, b.batch.shapes.size(), frame, capacity, result}, !b.where.where, find_place,
                      [&](const dr_call& read, dr::encode_request& request, dr::encode_result& made) -> dr_status {
                        if (!b.encodes)
                          return fail(b.context.error, DR_E_ARGUMENT,
                                      "binding: created without tensors, so it cannot encode");
                        if (const dr_status s = dr::check_repeated(b.batch, read, b.tensors, b.context.error)) return s;
                        return b.encode(request, made);
                      });
}

dr_status dr_binding_decode(dr_binding* binding, const void* frame, size_t size, const dr_decode_options* options,
                            dr_result* result) {
  if (!binding) return DR_E_ARGUMENT;
  const dr_bytes bytes{frame, size};
  return binding->run(dr::decode_of(bytes), options, result, "decode");
}

dr_status dr_binding_merge(dr_binding* binding, const dr_bytes* frames, const float* weights, size_t k,
                           const dr_decode_options* options, dr_result* result) {
  if (!binding) return DR_E_ARGUMENT;
  return binding->run({{frames, k}, weights}, options, result, "merge");
}
