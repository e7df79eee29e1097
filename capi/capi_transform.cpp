// Transforms: the factors of a low-rank all-reduce.
#include <algorithm>
#include <cmath>

#include "capi/handles.hpp"
#include "deepreduce/transform.h"
#include "pipeline/tensor_check.hpp"
#include "transform/lowrank.hpp"

using dr::bad_tensor;
using dr::fail;
using dr::in_context;
using dr::read_array;
using dr::read_struct;

struct dr_transform {
  explicit dr_transform(dr::context& c) : context(c) {}
  ~dr_transform() {
    if (memory) context.release(memory, memory_size);
  }
  dr_transform(const dr_transform&) = delete;
  dr_transform& operator=(const dr_transform&) = delete;

  dr::context& context;
  dr::lowrank state;
  std::shared_ptr<const dr::plan> method;
  void* memory = nullptr;
  size_t memory_size = 0;
  // Of the call under way. They keep their room.
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  std::vector<const float*> gradients;
  std::vector<float*> results;
};

namespace {

template <class F>
dr_status in_transform(dr_transform* t, F&& f) noexcept {
  if (!t) return DR_E_ARGUMENT;
  return in_context(&t->context, [&](dr::context& c) { return f(c); });
}

dr_status check_shape(const dr_tensor& t, size_t i, dr_error& error) {
  dr::tensor_shape shape;
  if (const dr_status s = dr::read_shape(t, i, shape, error)) return s;
  if (t.dtype != DR_F32 || t.index_dtype)
    return bad_tensor(error, i, DR_E_UNSUPPORTED, t.dtype, "lowrank requires dense f32 tensors");
  if (t.plan || t.state || t.state_size)
    return bad_tensor(error, i, DR_E_ARGUMENT, 0, "has a plan or a state of its own; a transform has one for all");
  if (t.flags) return bad_tensor(error, i, DR_E_ARGUMENT, t.flags, "flags 0x%x are of sparse tensors", t.flags);
  return DR_OK;
}

uint64_t width_of(uint32_t width) { return std::max(1u, width); }

dr_status check_memory(const dr_transform& x, size_t i, dr_error& error) {
  const dr_tensor& t = x.tensors[i];
  const dr_tensor_out& o = x.outs[i];
  const dr::lowrank_item& item = x.state.items()[i];
  if (const dr_status s = check_shape(t, i, error)) return s;
  if (t.universe != item.rows || width_of(t.width) != item.columns)
    return bad_tensor(error, i, DR_E_ARGUMENT, t.universe, "differs in shape from the one that it was created for");
  if (o.flags) return bad_tensor(error, i, DR_E_UNSUPPORTED, o.flags, "its output has unknown flags 0x%x", o.flags);
  if (o.dtype != DR_F32 || o.index_dtype || o.universe != t.universe || width_of(o.width) != item.columns)
    return bad_tensor(error, i, DR_E_ARGUMENT, o.universe, "its output is not dense f32 of the tensor's shape");
  if (item.elements() && (!t.values || !o.values))
    return bad_tensor(error, i, DR_E_ARGUMENT, 0, "%s is NULL", t.values ? "its output" : "values");
  if (reinterpret_cast<uintptr_t>(t.values) % sizeof(float) || reinterpret_cast<uintptr_t>(o.values) % sizeof(float))
    return bad_tensor(error, i, DR_E_ARGUMENT, 0, "values or output are not aligned to f32");
  return DR_OK;
}

dr_status check_idle(const dr_transform& t, dr_error& error) {
  return t.state.busy() ? fail(error, DR_E_ARGUMENT, "transform: a round is under way") : DR_OK;
}

dr::lowrank_options options_of(const dr::plan& p, const dr_transform_options& given) {
  dr::lowrank_options o{.rank = p.transform.rank,
                        .keeps = p.keeps_feedback(),
                        .seed = given.seed,
                        .dense_below = given.dense_below,
                        .marks = (given.flags & DR_TRANSFORM_MARKS) != 0};
  if (!o.keeps) return o;
  const auto weights = p.feedback_rule().weights();
  o.beta = weights.beta;
  o.gamma = weights.gamma;
  return o;
}

}  // namespace

dr_status dr_transform_create(dr_context* context, const dr_plan* plan, const dr_transform_options* options,
                              const dr_tensor* tensors, size_t stride, size_t n, dr_transform** transform) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!transform) return fail(c.error, DR_E_ARGUMENT, "transform is NULL");
    *transform = nullptr;
    if (!plan) return fail(c.error, DR_E_ARGUMENT, "plan is NULL");
    if (!plan->bound->transforms())
      return fail(c.error, DR_E_ARGUMENT, "plan: `%s` has no transform=", plan->bound->text.c_str());
    dr_transform_options given;
    if (const dr_status s = read_struct(options, "options", given, c.error)) return s;
    if (given.flags & ~uint32_t{DR_TRANSFORM_MARKS} || given.reserved)
      return fail(c.error, DR_E_UNSUPPORTED, "options: unknown flags 0x%x, or reserved is not 0", given.flags);
    auto t = std::make_unique<dr_transform>(c);
    t->method = plan->bound;
    if (const dr_status s = read_array(tensors, stride, n, "tensors", t->tensors, c.error)) return s;
    if (given.flags && !n)
      return fail(c.error, DR_E_ARGUMENT, "options: flag MARKS requires a last tensor; there are 0 tensors");
    std::vector<dr::lowrank_shape> shapes;
    for (size_t i = 0; i < n; ++i) {
      if (const dr_status s = check_shape(t->tensors[i], i, c.error)) return s;
      shapes.push_back({t->tensors[i].universe, width_of(t->tensors[i].width)});
    }
    if (const dr_status s = t->state.create(options_of(*t->method, given), shapes, c.workers->workers(), c.error))
      return s;
    t->outs.reserve(n);
    t->gradients.resize(n);
    t->results.resize(n);
    t->memory_size = std::max<uint64_t>(1, t->state.memory_size());
    t->memory = c.allocate(t->memory_size);
    if (!t->memory) return fail(c.error, DR_E_MEMORY, "transform: cannot allocate %zu bytes", t->memory_size);
    t->state.place(static_cast<std::byte*>(t->memory));
    *transform = t.release();
    return DR_OK;
  });
}

void dr_transform_destroy(dr_transform* transform) { delete transform; }

dr_status dr_transform_begin(dr_transform* transform, const dr_tensor* tensors, size_t stride,
                             const dr_tensor_out* outs, size_t out_stride, size_t n) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    dr_transform& t = *transform;
    t.state.cancel(false);
    if (n != t.state.items().size())
      return fail(c.error, DR_E_ARGUMENT, "%zu tensors; the transform was created for %zu", n, t.state.items().size());
    if (const dr_status s = read_array(tensors, stride, n, "tensors", t.tensors, c.error)) return s;
    if (const dr_status s = read_array(outs, out_stride, n, "outputs", t.outs, c.error)) return s;
    for (size_t i = 0; i < n; ++i) {
      if (const dr_status s = check_memory(t, i, c.error)) return s;
      t.gradients[i] = static_cast<const float*>(t.tensors[i].values);
      t.results[i] = static_cast<float*>(t.outs[i].values);
    }
    if (const dr_status s = dr::list_ranges(t.outs, c.ranges, c.error)) return s;
    if (const dr_status s = dr::check_in_place(t.tensors, c.ranges, c.error)) return s;
    return t.state.begin(t.gradients, t.results, *c.workers, c.error);
  });
}

dr_status dr_transform_factor(dr_transform* transform, float** factor, uint64_t* count) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    if (!factor || !count) return fail(c.error, DR_E_ARGUMENT, "%s is NULL", factor ? "count" : "factor");
    if (!transform->state.busy()) return fail(c.error, DR_E_ARGUMENT, "transform: no round is under way");
    *factor = transform->state.factor().data();
    *count = transform->state.factor().size();
    return DR_OK;
  });
}

dr_status dr_transform_next(dr_transform* transform, float mean) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    if (!transform->state.busy()) return fail(c.error, DR_E_ARGUMENT, "transform: no round is under way");
    if (!std::isfinite(mean)) return fail(c.error, DR_E_ARGUMENT, "mean: %g is not finite", static_cast<double>(mean));
    return transform->state.advance(mean, 1, *c.workers, c.error);
  });
}

dr_status dr_transform_cancel(dr_transform* transform, uint32_t flags) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    if (flags & ~uint32_t{DR_TRANSFORM_KEEP})
      return fail(c.error, DR_E_UNSUPPORTED, "flags: 0x%x, of which 0x%x is known", flags, DR_TRANSFORM_KEEP);
    if (flags && !transform->state.keeps())
      return fail(c.error, DR_E_ARGUMENT, "flags: DR_TRANSFORM_KEEP requires a plan with feedback");
    transform->state.cancel(flags & DR_TRANSFORM_KEEP);
    return DR_OK;
  });
}

dr_status dr_transform_residual(dr_transform* transform, size_t tensor, float** residual, uint64_t* elements) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    if (!residual || !elements) return fail(c.error, DR_E_ARGUMENT, "%s is NULL", residual ? "elements" : "residual");
    if (const dr_status s = check_idle(*transform, c.error)) return s;
    if (tensor >= transform->state.items().size())
      return fail(c.error, DR_E_ARGUMENT, "tensor %zu: not below the %zu of the transform", tensor,
                  transform->state.items().size());
    if (!transform->state.keeps())
      return fail(c.error, DR_E_ARGUMENT, "plan: it has no feedback, so there is no residual");
    const std::span<float> values = transform->state.residual(tensor);
    *residual = values.data();
    *elements = values.size();
    return DR_OK;
  });
}

dr_status dr_transform_save(dr_transform* transform, void* state, size_t size) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    if (!state) return fail(c.error, DR_E_ARGUMENT, "state is NULL");
    if (const dr_status s = check_idle(*transform, c.error)) return s;
    if (size != transform->state.state_size())
      return fail(c.error, DR_E_ARGUMENT, "state: %zu bytes, %" PRIu64 " expected", size,
                  transform->state.state_size());
    transform->state.save(static_cast<std::byte*>(state));
    return DR_OK;
  });
}

dr_status dr_transform_load(dr_transform* transform, const void* state, size_t size) {
  return in_transform(transform, [&](dr::context& c) -> dr_status {
    if (!state) return fail(c.error, DR_E_ARGUMENT, "state is NULL");
    if (const dr_status s = check_idle(*transform, c.error)) return s;
    return transform->state.load(static_cast<const std::byte*>(state), size, c.error);
  });
}

dr_status dr_transform_reset(dr_transform* transform) {
  return in_transform(transform, [&](dr::context&) -> dr_status {
    transform->state.reset();
    return DR_OK;
  });
}

dr_status dr_transform_describe(const dr_transform* transform, dr_transform_info* info, dr_error* error) {
  return dr::reported(error, [&](dr_error& e) -> dr_status {
    if (!transform || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", transform ? "info" : "transform");
    dr_transform_info i;
    if (const dr_status s = read_struct(info, "info", i, e)) return s;
    const dr::lowrank& t = transform->state;
    i.rank = transform->method->transform.rank;
    i.busy = t.busy();
    i.tensors = t.items().size();
    i.matrices = static_cast<uint64_t>(
        std::count_if(t.items().begin(), t.items().end(), [](const dr::lowrank_item& x) { return !x.dense; }));
    i.elements = t.elements();
    i.first = t.first_size();
    i.second = t.second_size();
    i.rounds = t.rounds();
    i.memory = transform->memory_size;
    i.state_size = t.state_size();
    dr::write_struct(i, info);
    return DR_OK;
  });
}
