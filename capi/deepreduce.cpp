// The C ABI: handles, versions of structs, errors. No algorithm lives here.
#include "deepreduce/deepreduce.h"

#include <dlfcn.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "capi/guard.hpp"
#include "container/frame.hpp"
#include "core/pool.hpp"
#include "core/registry.hpp"
#include "feedback/residual.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/encode.hpp"
#include "pipeline/trace.hpp"

struct dr_plan {
  std::shared_ptr<const dr::plan> bound;
};
struct dr_batch {
  dr::batch prepared;
};
struct dr_context {
  dr_context_options options{};
  std::unique_ptr<dr::pool> workers;
  dr_error error{};
  void* workspace = nullptr;
  size_t workspace_size = 0;

  ~dr_context() {
    if (workspace) options.release(options.user, workspace, workspace_size);
  }
  // Grows and stays: steady state allocates nothing.
  dr_status reserve(uint64_t size) {
    if (size <= workspace_size) return DR_OK;
    if (workspace) options.release(options.user, workspace, workspace_size);
    workspace_size = 0;
    workspace = size > SIZE_MAX / 4 ? nullptr : options.allocate(options.user, size, dr::arena::alignment);
    if (!workspace) return dr::fail(error, DR_E_MEMORY, "workspace: no %" PRIu64 " bytes to be had", size);
    workspace_size = size;
    return DR_OK;
  }
};

namespace {

using dr::fail;
using dr::guarded;
using dr::read_struct;
using dr::write_struct;

void* default_allocate(void*, size_t size, size_t alignment) {
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void default_release(void*, void* memory, size_t) { std::free(memory); }

constexpr uint32_t threads_max = 256;

// For functions that have no context: the error goes to the caller's dr_error.
template <class F>
dr_status reported(dr_error* out, F&& f) noexcept {
  dr_error error{};
  const dr_status status = guarded(error, [&] { return f(error); });
  if (status) dr::hand_over(error, out);
  return status;
}

// For functions with one: it remembers.
template <class F>
dr_status in_context(dr_context* context, F&& f) noexcept {
  if (!context) return DR_E_ARGUMENT;
  return guarded(context->error, [&] { return f(*context); });
}

dr_status no_device(const dr_place* place, dr_error& error) {
  const auto p = read_struct<dr_place>(place);
  if (!place || p.kind == DR_PLACE_CPU) return DR_OK;
  if (p.kind == DR_PLACE_CUDA) return fail(error, DR_E_UNSUPPORTED, "place: this library has no CUDA back end yet");
  return fail(error, DR_E_ARGUMENT, "place: kind %u is unknown", p.kind);
}

// Whether struct i of a caller's array is one: it begins with a size, and that fits the stride.
dr_status check_struct(const void* array, size_t stride, size_t i, const char* what, dr_error& error) {
  size_t size;
  std::memcpy(&size, static_cast<const char*>(array) + i * stride, sizeof size);
  if (size <= sizeof(size_t) || size > stride)
    return fail(error, DR_E_ARGUMENT, "%s %zu: struct_size %zu does not fit a stride of %zu", what, i, size, stride);
  return DR_OK;
}

// An array of caller's structs, `stride` apart.
template <class T>
dr_status read_array(const void* from, size_t stride, size_t n, const char* what, std::vector<T>& out,
                     dr_error& error) {
  if (n == 0) return DR_OK;
  if (!from) return fail(error, DR_E_ARGUMENT, "%s is NULL", what);
  if (stride < sizeof(size_t))
    return fail(error, DR_E_ARGUMENT, "%s: stride %zu is smaller than a struct", what, stride);
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    if (const dr_status s = check_struct(from, stride, i, what, error)) return s;
    out.push_back(read_struct<T>(static_cast<const char*>(from) + i * stride));
  }
  return DR_OK;
}

struct tensors {
  std::vector<dr_tensor> views;
  std::vector<std::shared_ptr<const dr::plan>> plans;

  dr_status read(const dr_tensor* from, size_t stride, size_t n, dr_error& error) {
    if (const dr_status s = read_array(from, stride, n, "tensors", views, error)) return s;
    for (const dr_tensor& t : views) plans.push_back(t.plan ? t.plan->bound : nullptr);
    return DR_OK;
  }
};

dr_status prepare(dr_context& context, const dr_plan* plan, const tensors& t, uint64_t segment_rows, dr::batch& out) {
  const dr::batch_request request{plan ? plan->bound : nullptr, segment_rows, context.workers->workers()};
  return dr::prepare(request, t.views, t.plans, out, context.error);
}

// The batch's bound, or a status frame if that is longer.
uint64_t bound_of(const dr::batch& b) { return std::max<uint64_t>(b.layout[1].frame_bound, dr::status_frame_max); }

struct encode_request {
  const dr_call* call;
  const dr_place* place;
  void* frame;
  size_t capacity;
  dr_result* result;
};

// Runs `attempt` and, whatever came of it, fills the result and the status frame that the caller asked for.
template <class F>
dr_status finish_encode(dr_context& context, const encode_request& request, F&& attempt) {
  const auto c = read_struct<dr_call>(request.call);
  dr::encode_result made;
  const dr_status status = guarded(context.error, [&]() -> dr_status {
    if (request.result && !dr::has_size(request.result))
      return fail(context.error, DR_E_ARGUMENT, "result: struct_size is not set");
    if (const dr_status s = no_device(request.place, context.error)) return s;
    if (c.flags & ~uint32_t{DR_CALL_TAG | DR_CALL_STATUS_FRAME | DR_CALL_LIST})
      return fail(context.error, DR_E_ARGUMENT, "call: unknown flags 0x%x", c.flags);
    if (!request.frame && request.capacity) return fail(context.error, DR_E_ARGUMENT, "frame is NULL");
    const dr::encode_call call{c.step, c.seed, c.private_seed, c.tag, c.flags, c.trace, c.trace_user};
    return attempt(c, call, made);
  });
  dr_result result{};
  result.status = status;
  result.size = made.size;
  result.tensor = made.tensor;
  result.fault = made.fault;
  if (status) {
    result.size = 0;
    if ((c.flags & DR_CALL_STATUS_FRAME) && request.frame && request.capacity >= dr::status_frame_max)
      result.size = dr::write_status_frame(status, context.error.message, c.flags & DR_CALL_TAG, c.tag,
                                           static_cast<uint8_t*>(request.frame));
  }
  if (request.result) write_struct(result, request.result);
  return status;
}

dr_status run_encode(dr_context& context, const dr::batch& b, const dr::encode_call& call, const tensors& t,
                     void* workspace, uint64_t workspace_size, const encode_request& request, dr::encode_result& made) {
  // A batch has scratch for the workers that it was prepared for.
  dr::pool serial(1);
  dr::pool& workers = context.workers->workers() <= b.workers ? *context.workers : serial;
  return dr::encode(b, call, t.views, workers, workspace, workspace_size, static_cast<uint8_t*>(request.frame),
                    request.capacity, made, context.error);
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
struct outputs {
  std::vector<dr_tensor_out> own;
  std::vector<dr_tensor_out*> pointers;

  dr_status read(const dr_tensor_out* from, size_t stride, size_t n, dr_error& error) {
    if (const dr_status s = read_array(from, stride, n, "outputs", own, error)) return s;
    for (dr_tensor_out& o : own) pointers.push_back(&o);
    return DR_OK;
  }
  void give_back(dr_tensor_out* to, size_t stride) const {
    for (size_t i = 0; i < own.size(); ++i) write_struct(own[i], reinterpret_cast<char*>(to) + i * stride);
  }
};

dr_status decode_into(dr_context& context, std::span<const dr::frame_view> frames, const dr_limits& limits,
                      std::vector<dr::decoded_row>& rows) {
  uint64_t bytes = 0;
  if (const dr_status s = dr::decode_workspace(frames, limits, context.workers->workers(), bytes, context.error))
    return s;
  if (const dr_status s = context.reserve(bytes)) return s;
  size_t n = 0;
  for (const auto& f : frames) n += f.rows.size();
  rows.resize(n);
  dr::arena memory(context.workspace, context.workspace_size);
  return dr::decode_rows(frames, *context.workers, memory, rows.data(), context.error);
}

void describe_tensor(const dr::frame_view& f, size_t begin, size_t end, dr_tensor_info& t) {
  const dr::wire_plan& p = f.plans[f.rows[begin].plan];
  t.width = p.width;
  t.dtype = p.dtype;
  t.segments = static_cast<uint32_t>(end - begin);
  for (size_t i = begin; i < end; ++i) {
    const dr::wire_row& r = f.rows[i];
    t.universe += r.universe;
    t.count += r.count;
    t.support += r.support;
    t.fallback = std::max(t.fallback, r.mode);
    t.value_size += r.size[dr::section_value];
    t.order_size += r.size[dr::section_order];
    t.index_size += r.size[dr::section_index];
  }
  std::string text = "index=" + dr::describe_list(p.index()) + " value=" + dr::describe_list(p.value());
  if (p.order().count) text += " order=" + dr::describe_list(p.order());
  std::strncpy(t.plan, text.c_str(), sizeof t.plan - 1);
}

}  // namespace

// ---- Versions, context ------------------------------------------------------------------------------------

const char* dr_version(void) { return DR_VERSION_STRING; }
uint32_t dr_abi_version(void) { return DR_ABI_VERSION; }
const char* dr_status_name(dr_status status) { return dr::status_name(status); }

dr_status dr_context_create(const dr_context_options* options, dr_context** context) {
  if (!context) return DR_E_ARGUMENT;
  *context = nullptr;
  dr_error error{};
  return guarded(error, [&]() -> dr_status {
    auto c = std::make_unique<dr_context>();
    c->options = read_struct<dr_context_options>(options);
    if (!c->options.allocate != !c->options.release || c->options.threads > threads_max) return DR_E_ARGUMENT;
    if (!c->options.allocate) {
      c->options.allocate = default_allocate;
      c->options.release = default_release;
    }
    c->workers = std::make_unique<dr::pool>(std::max(1u, c->options.threads));
    c->error.struct_size = sizeof(dr_error);
    *context = c.release();
    return DR_OK;
  });
}

void dr_context_destroy(dr_context* context) { delete context; }

const dr_error* dr_last_error(const dr_context* context) {
  static constexpr dr_error none{sizeof(dr_error), DR_E_ARGUMENT, 0, DR_NO_TENSOR, 0, "context is NULL"};
  return context ? &context->error : &none;
}

// ---- Plans, codecs ----------------------------------------------------------------------------------------

dr_status dr_plan_parse(const char* text, dr_plan** plan, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!text || !plan) return fail(e, DR_E_ARGUMENT, "%s is NULL", text ? "plan" : "text");
    *plan = nullptr;
    auto p = std::make_unique<dr_plan>();
    if (const dr_status s = dr::bind_plan(text, p->bound, e)) return s;
    *plan = p.release();
    return DR_OK;
  });
}

const char* dr_plan_text(const dr_plan* plan) { return plan ? plan->bound->text.c_str() : ""; }
void dr_plan_destroy(dr_plan* plan) { delete plan; }

size_t dr_codec_count(void) { return dr::codec_count(); }
const dr_codec* dr_codec_at(size_t position) { return dr::codec_at(position); }

dr_status dr_codec_register(const dr_codec* codec, dr_error* error) {
  return reported(error, [&](dr_error& e) { return dr::register_codecs(&codec, 1, e); });
}

dr_status dr_plugin_load(const char* path, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!path) return fail(e, DR_E_ARGUMENT, "path is NULL");
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(e, DR_E_UNSUPPORTED, "plug-in: %s", dlerror());
    void* const symbol = dlsym(library, DR_PLUGIN_SYMBOL);
    if (!symbol) return fail(e, DR_E_UNSUPPORTED, "plug-in %s: it does not export %s", path, DR_PLUGIN_SYMBOL);
    static constexpr dr_host host{sizeof(dr_host), DR_CODEC_ABI_VERSION, 0};
    size_t n = 0;
    const dr_codec* const* const codecs = reinterpret_cast<dr_plugin_fn>(symbol)(&host, &n);
    if (!codecs || !n)
      return fail(e, DR_E_UNSUPPORTED, "plug-in %s: it offers no codec to version %d", path, DR_CODEC_ABI_VERSION);
    return dr::register_codecs(codecs, n, e);
  });
}

// ---- Encode -----------------------------------------------------------------------------------------------

dr_status dr_bound(dr_context* context, const dr_plan* plan, const dr_tensor* list, size_t stride, size_t n,
                   size_t* bytes) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!bytes) return fail(c.error, DR_E_ARGUMENT, "bytes is NULL");
    tensors t;
    if (const dr_status s = t.read(list, stride, n, c.error)) return s;
    dr::batch b;
    if (const dr_status s = prepare(c, plan, t, 0, b)) return s;
    *bytes = bound_of(b);
    return DR_OK;
  });
}

dr_status dr_encode(dr_context* context, const dr_plan* plan, const dr_call* call, const dr_place* place,
                    const dr_tensor* list, size_t stride, size_t n, void* frame, size_t capacity, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  const encode_request request{call, place, frame, capacity, result};
  return finish_encode(
      *context, request, [&](const dr_call& c, const dr::encode_call& made_call, dr::encode_result& made) -> dr_status {
        tensors t;
        if (const dr_status s = t.read(list, stride, n, context->error)) return s;
        dr::batch b;
        if (const dr_status s = prepare(*context, plan, t, c.segment_rows, b)) return s;
        if (const dr_status s = context->reserve(b.workspace)) return s;
        return run_encode(*context, b, made_call, t, context->workspace, context->workspace_size, request, made);
      });
}

dr_status dr_batch_create(dr_context* context, const dr_plan* plan, const dr_place* place, const dr_tensor* list,
                          size_t stride, size_t n, uint64_t segment_rows, dr_batch** batch) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!batch) return fail(c.error, DR_E_ARGUMENT, "batch is NULL");
    *batch = nullptr;
    if (const dr_status s = no_device(place, c.error)) return s;
    tensors t;
    if (const dr_status s = t.read(list, stride, n, c.error)) return s;
    auto b = std::make_unique<dr_batch>();
    if (const dr_status s = prepare(c, plan, t, segment_rows, b->prepared)) return s;
    *batch = b.release();
    return DR_OK;
  });
}

void dr_batch_destroy(dr_batch* batch) { delete batch; }

dr_status dr_batch_describe(const dr_batch* batch, dr_batch_info* info) {
  if (!batch || !info || !dr::has_size(info)) return DR_E_ARGUMENT;
  const dr::batch& b = batch->prepared;
  dr_batch_info i{};
  i.bound = bound_of(b);
  i.workspace = b.workspace;
  i.tensors = static_cast<uint32_t>(b.shapes.size());
  i.rows = static_cast<uint32_t>(b.rows.size());
  write_struct(i, info);
  return DR_OK;
}

dr_status dr_batch_encode(dr_context* context, const dr_batch* batch, const dr_call* call, const dr_place* place,
                          const dr_tensor* list, size_t stride, size_t n, void* workspace, size_t workspace_size,
                          void* frame, size_t capacity, dr_result* result) {
  if (!context) return DR_E_ARGUMENT;
  const encode_request request{call, place, frame, capacity, result};
  return finish_encode(
      *context, request, [&](const dr_call&, const dr::encode_call& made_call, dr::encode_result& made) -> dr_status {
        if (!batch) return fail(context->error, DR_E_ARGUMENT, "batch is NULL");
        if (reinterpret_cast<uintptr_t>(workspace) % dr::arena::alignment)
          return fail(context->error, DR_E_ARGUMENT, "workspace is not aligned to 64 bytes");
        tensors t;
        if (const dr_status s = t.read(list, stride, n, context->error)) return s;
        return run_encode(*context, batch->prepared, made_call, t, workspace, workspace_size, request, made);
      });
}

// ---- State ------------------------------------------------------------------------------------------------

dr_status dr_state_size(const dr_plan* plan, const dr_tensor* tensor, size_t* bytes, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!tensor || !bytes || (!plan && !tensor->plan)) return fail(e, DR_E_ARGUMENT, "plan, tensor or bytes is NULL");
    const auto t = read_struct<dr_tensor>(tensor);
    const uint64_t width = t.width ? t.width : 1;
    if (t.universe > (UINT64_MAX >> 8) / width)
      return fail(e, DR_E_ARGUMENT, "tensor: %" PRIu64 " rows of %" PRIu64 " values", t.universe, width);
    const dr::plan& p = *(t.plan ? t.plan : plan)->bound;
    *bytes = p.keeps_feedback() ? dr::residual_size(t.universe * width) : 0;
    return DR_OK;
  });
}

dr_status dr_state_residual(void* state, size_t state_size, float** residual, uint64_t* elements) {
  if (!state || !residual || !elements || state_size < sizeof(dr::residual_state)) return DR_E_ARGUMENT;
  dr::residual_state head;
  std::memcpy(&head, state, sizeof head);
  bool fresh = false;
  dr_error error{};
  if (head.elements > (state_size - sizeof head) / 4 ||
      dr::check_residual(state, state_size, head.elements, &fresh, error) || fresh)
    return DR_E_ARGUMENT;
  *residual = dr::residual_of(state);
  *elements = head.elements;
  return DR_OK;
}

// ---- Inspect, decode, merge -------------------------------------------------------------------------------

dr_status dr_inspect(const void* frame, size_t size, dr_frame_info* info, dr_tensor_info* infos, size_t stride,
                     size_t capacity, dr_error* error) {
  return reported(error, [&](dr_error& e) -> dr_status {
    if (!frame || !info) return fail(e, DR_E_ARGUMENT, "%s is NULL", frame ? "info" : "frame");
    if (!dr::has_size(info)) return fail(e, DR_E_ARGUMENT, "info: struct_size is not set");
    if (infos && capacity && stride < sizeof(size_t))
      return fail(e, DR_E_ARGUMENT, "infos: stride %zu is smaller than a struct", stride);
    dr::frame_view f;
    if (const dr_status s = dr::read_frame(static_cast<const uint8_t*>(frame), size, f, e)) return s;
    const size_t wanted = infos ? std::min<size_t>(capacity, f.tensors) : 0;
    for (size_t k = 0; k < wanted; ++k)
      if (const dr_status s = check_struct(infos, stride, k, "infos", e)) return s;
    dr_frame_info i{};
    i.version = f.version;
    i.flags = f.flags;
    i.status = f.status;
    i.tensors = f.tensors;
    i.rows = static_cast<uint32_t>(f.rows.size());
    i.plans = static_cast<uint32_t>(f.plans.size());
    i.frame_size = f.frame_size;
    i.header_size = f.header_size;
    i.tag = f.tag;
    std::memcpy(i.message, f.message, sizeof i.message);
    write_struct(i, info);
    size_t n = 0;
    for (size_t begin = 0; n < wanted;) {
      size_t end = begin + 1;
      while (end < f.rows.size() && f.rows[end].continues) ++end;
      dr_tensor_info t{};
      describe_tensor(f, begin, end, t);
      write_struct(t, reinterpret_cast<char*>(infos) + n++ * stride);
      begin = end;
    }
    return DR_OK;
  });
}

dr_status dr_decode(dr_context* context, const dr_place* place, const void* frame, size_t size, const dr_limits* limits,
                    dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (const dr_status s = no_device(place, c.error)) return s;
    dr::frame_view f;
    if (const dr_status s = read_sound_frame(frame, size, f, c.error)) return s;
    outputs o;
    if (const dr_status s = o.read(outs, stride, n, c.error)) return s;
    if (const dr_status s = dr::check_outputs(f, o.own, false, c.error)) return s;
    std::vector<dr::decoded_row> rows;
    if (const dr_status s = decode_into(c, {&f, 1}, read_struct<dr_limits>(limits), rows)) return s;
    dr::deliver(f, rows.data(), o.pointers);
    o.give_back(outs, stride);
    return DR_OK;
  });
}

dr_status dr_merge(dr_context* context, const dr_place* place, const dr_bytes* frames, const float* weights, size_t k,
                   const dr_merge_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (const dr_status s = no_device(place, c.error)) return s;
    if (!frames && k) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
    const auto option = read_struct<dr_merge_options>(options);
    if (option.flags & ~uint32_t{DR_MERGE_ADD})
      return fail(c.error, DR_E_ARGUMENT, "merge: unknown flags 0x%x", option.flags);
    outputs o;
    if (const dr_status s = o.read(outs, stride, n, c.error)) return s;
    std::vector<dr::frame_view> views(k);
    for (size_t i = 0; i < k; ++i) {
      dr_status s = read_sound_frame(frames[i].data, frames[i].size, views[i], c.error);
      if (!s) s = dr::check_outputs(views[i], o.own, true, c.error);
      if (!s) continue;
      const dr_error inner = c.error;
      fail(c.error, s, "frame %zu: %s", i, inner.message);
      c.error.tensor = inner.tensor;
      return s;
    }
    std::vector<dr::decoded_row> rows;
    if (const dr_status s = decode_into(c, views, option.limits, rows)) return s;
    // Every frame is sound: from here on nothing fails.
    if (!(option.flags & DR_MERGE_ADD)) dr::clear(o.pointers);
    size_t first = 0;
    for (size_t i = 0; i < k; ++i) {
      dr::add(views[i], rows.data() + first, weights ? weights[i] : 1, o.pointers);
      first += views[i].rows.size();
    }
    o.give_back(outs, stride);
    return DR_OK;
  });
}
