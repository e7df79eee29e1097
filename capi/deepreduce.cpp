// The C ABI: handles, versions of structs, errors. No algorithm lives here.
#include "deepreduce/deepreduce.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "capi/guard.hpp"
#include "capi/on_device.hpp"
#include "container/frame.hpp"
#include "core/pool.hpp"
#include "core/registry.hpp"
#include "feedback/residual.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/device_decode.hpp"
#include "pipeline/encode.hpp"
#include "pipeline/host_detour.hpp"
#include "pipeline/trace.hpp"

struct dr_plan {
  std::shared_ptr<const dr::plan> bound;
};
struct dr_batch {
  dr::batch prepared;
  dr::device* where = nullptr;  // NULL: the CPU
  bool by_host = false;         // on a device, but with a codec that has no operations there
  dr::device_headers headers;
  dr::decode_shape frames;  // of this batch
  uint64_t device_workspace = 0;
  uint32_t launches = 0;

  dr_status prepare_device(const dr::target& t, dr_error& error) {
    where = t.where;
    if (!where) return DR_OK;
    bool host_would_do = false;
    if (const dr_status s = dr::check_device_batch(prepared, host_would_do, error)) {
      by_host = host_would_do && t.allows_host;
      return by_host ? DR_OK : s;
    }
    device_workspace = dr::device_encode_workspace(prepared);
    headers = dr::headers_of(prepared);
    return dr::count_device_launches(prepared, headers, *where, launches, error);
  }
  bool runs_on_device() const { return where && !by_host; }
  dr_status prepare_decode(dr_error& error) {
    if (!runs_on_device()) return DR_OK;
    if (const dr_status s = dr::shape_of_batch(prepared, frames, error)) return s;
    dr::load_decode_kernels(frames, *where);
    return DR_OK;
  }
};
// A batch that dr_encode may need again.
struct cached_batch {
  std::shared_ptr<const dr::plan> method;
  std::vector<std::shared_ptr<const dr::plan>> plans;
  std::vector<dr::tensor_shape> shapes;
  uint64_t segment_rows;
  dr_batch batch;
};
// Tensors of a call, in our version of the struct.
struct tensors {
  std::vector<dr_tensor> views;
  std::vector<std::shared_ptr<const dr::plan>> plans;

  dr_status read(const dr_tensor* from, size_t stride, size_t n, dr_error& error);
};
struct dr_context {
  dr_context_options options{};
  std::unique_ptr<dr::pool> workers;
  dr::pool serial{1};
  dr_error error{};
  void* workspace = nullptr;
  size_t workspace_size = 0;
  dr::device_memory on_device;
  // Of the call under way; they keep their room, so that steady state allocates nothing.
  tensors list;
  std::vector<dr_tensor_out> outs;
  std::vector<dr::frame_view> frames;
  std::vector<dr::decoded_row> rows;
  std::vector<dr::deliver_room> rooms;
  std::vector<std::unique_ptr<cached_batch>> batches;  // of dr_encode, the latest first

  ~dr_context() {
    if (workspace) options.release(options.user, workspace, workspace_size);
  }
  // A batch has scratch for the workers that it was prepared for.
  dr::pool& workers_for(const dr::batch& b) { return workers->workers() <= b.workers ? *workers : serial; }
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
  // Large workspaces in large pages, where the system has them: a page of 4 KiB for every few kept values is many.
  constexpr size_t large_page = size_t{2} << 20;
  if (size >= 2 * large_page) alignment = large_page;
  const size_t whole = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
#ifdef MADV_HUGEPAGE
  if (memory && alignment == large_page) madvise(memory, whole, MADV_HUGEPAGE);
#endif
  return memory;
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

dr_status find_target(const dr_place* place, dr::target& out, dr_error& error) {
  const auto p = read_struct<dr_place>(place);
  out = {};
  if (p.flags & ~uint32_t{DR_PLACE_ALLOW_HOST}) return fail(error, DR_E_ARGUMENT, "place: unknown flags 0x%x", p.flags);
  if (!place || p.kind == DR_PLACE_CPU) return DR_OK;
  out.stream = p.stream;
  out.allows_host = p.flags & DR_PLACE_ALLOW_HOST;
  return dr::find_device(p, out.where, error);
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
  out.clear();
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

}  // namespace

dr_status tensors::read(const dr_tensor* from, size_t stride, size_t n, dr_error& error) {
  plans.clear();
  if (const dr_status s = read_array(from, stride, n, "tensors", views, error)) return s;
  for (const dr_tensor& t : views) plans.push_back(t.plan ? t.plan->bound : nullptr);
  return DR_OK;
}

namespace {

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

// Runs `attempt` and, whatever came of it, fills the result and the status frame that the caller asked for. On a device the result is the
// kernels' to fill; what went wrong before they began is in the status alone.
template <class F>
dr_status finish_encode(dr_context& context, const encode_request& request, F&& attempt) {
  const auto c = read_struct<dr_call>(request.call);
  dr::encode_result made;
  dr::target target;
  const dr_status status = guarded(context.error, [&]() -> dr_status {
    if (const dr_status s = find_target(request.place, target, context.error)) return s;
    if (request.result && !target.where && !dr::has_size(request.result))
      return fail(context.error, DR_E_ARGUMENT, "result: struct_size is not set");
    if (c.flags & ~uint32_t{DR_CALL_TAG | DR_CALL_STATUS_FRAME | DR_CALL_LIST})
      return fail(context.error, DR_E_ARGUMENT, "call: unknown flags 0x%x", c.flags);
    if (!request.frame && (request.capacity || target.where))
      return fail(context.error, DR_E_ARGUMENT, "frame is NULL");
    const dr::encode_call call{c.step, c.seed, c.private_seed, c.tag, c.flags, c.trace, c.trace_user};
    return attempt(c, call, target, made);
  });
  if (target.where) return status;
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
  dr_result result{sizeof(dr_result), s ? 0 : made.size, s, 0, made.tensor, made.fault};
  result.fault.message = nullptr;
  uint8_t said[dr::status_frame_max];
  dr_status copied = DR_OK;
  if (s && (call.flags & DR_CALL_STATUS_FRAME) && request.capacity >= sizeof said) {
    result.size = dr::write_status_frame(s, context.error.message, call.flags & DR_CALL_TAG, call.tag, said);
    copied = target.where->copy(target.stream, frame, said, result.size);
  }
  if (request.result && !copied) copied = target.where->copy(target.stream, request.result, &result, sizeof result);
  const dr_status waited = target.where->wait(target.stream);
  return s ? s : copied ? copied : waited;
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
    return c->method == method && c->segment_rows == segment_rows && c->batch.where == target.where &&
           (!c->batch.by_host || target.allows_host) && c->plans == t.plans &&
           std::equal(t.views.begin(), t.views.end(), c->shapes.begin(), c->shapes.end(), same_shape);
  });
  if (found != all.end()) {
    std::rotate(all.begin(), found, found + 1);
    out = &all.front()->batch;
    return DR_OK;
  }
  auto made = std::make_unique<cached_batch>();
  if (const dr_status s = prepare(context, plan, t, segment_rows, made->batch.prepared)) return s;
  if (const dr_status s = made->batch.prepare_device(target, context.error)) return s;
  made->method = method;
  made->plans = t.plans;
  made->shapes = made->batch.prepared.shapes;
  made->segment_rows = segment_rows;
  if (all.size() == most) all.pop_back();
  all.insert(all.begin(), std::move(made));
  out = &all.front()->batch;
  return DR_OK;
}

dr_status read_sound_frame(const void* frame, size_t size, dr::frame_view& out, dr_error& error,
                           uint64_t memory_max = UINT64_MAX) {
  if (!frame) return fail(error, DR_E_ARGUMENT, "frame is NULL");
  if (const dr_status s = dr::read_frame(static_cast<const uint8_t*>(frame), size, out, error, memory_max)) return s;
  if (out.status)
    return fail(error, DR_E_PEER, "frame: the rank that sent it could not encode (%s): %s", dr::status_name(out.status),
                out.message);
  return DR_OK;
}

// Outputs in our version of the struct; `count` goes back to the caller's.
dr_status read_outputs(dr_context& c, const dr_tensor_out* from, size_t stride, size_t n) {
  return read_array(from, stride, n, "outputs", c.outs, c.error);
}
void give_back(const dr_context& c, dr_tensor_out* to, size_t stride) {
  for (size_t i = 0; i < c.outs.size(); ++i) write_struct(c.outs[i], reinterpret_cast<char*>(to) + i * stride);
}

// What headers may take.
uint64_t header_room(const dr_limits& limits) { return limits.max_workspace ? limits.max_workspace : UINT64_MAX; }

// Into c.rows, and c.rooms to deliver them from.
dr_status decode_frames(dr_context& c, std::span<const dr::frame_view> frames, std::span<const dr_tensor_out> outs,
                        const dr_limits& limits) {
  uint64_t bytes = 0;
  if (const dr_status s = dr::decode_workspace(frames, outs, limits, c.workers->workers(), bytes, c.error)) return s;
  if (const dr_status s = c.reserve(bytes)) return s;
  size_t n = 0;
  for (const auto& f : frames) n += f.rows.size();
  c.rows.resize(n);
  c.rooms.resize(c.workers->workers());
  dr::arena memory(c.workspace, c.workspace_size);
  return dr::decode_rows(frames, *c.workers, memory, c.rows.data(), c.rooms.data(), c.error);
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
  for (const dr::stage_list& list : p.lists)
    for (const dr::stage& s : list) t.host_only |= !dr::runs_on_cuda(s);
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
    if (!library)
      return fail(e, DR_E_UNSUPPORTED, "plug-in: %s%s", dlerror(),
                  std::strchr(path, '/') ? "" : " (without a slash it is looked for where the system's libraries are)");
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
                         dr::device_memory& memory = context->on_device;
                         if (!b->by_host)
                           if (const dr_status s = memory.reserve(target, b->device_workspace, context->error))
                             return s;
                         return run_on_device(*context, *b, made_call, target, t.views, memory.at(), memory.size(),
                                              request);
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
    if (const dr_status s = prepare(c, plan, t, segment_rows, b->prepared)) return s;
    if (const dr_status s = b->prepare_device(target, c.error)) return s;
    if (const dr_status s = b->prepare_decode(c.error)) return s;
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
  i.workspace = batch->where ? batch->device_workspace : b.workspace;
  i.launches = batch->launches;
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
      *context, request,
      [&](const dr_call&, const dr::encode_call& made_call, const dr::target& target,
          dr::encode_result& made) -> dr_status {
        if (!batch) return fail(context->error, DR_E_ARGUMENT, "batch is NULL");
        if (batch->where != target.where)
          return fail(context->error, DR_E_ARGUMENT, "place: not the one that the batch was prepared for");
        if (reinterpret_cast<uintptr_t>(workspace) % dr::arena::alignment)
          return fail(context->error, DR_E_ARGUMENT, "workspace is not aligned to 64 bytes");
        auto& views = context->list.views;
        if (const dr_status s = read_array(list, stride, n, "tensors", views, context->error)) return s;
        if (target.where)
          return run_on_device(*context, *batch, made_call, target, views, workspace, workspace_size, request);
        return run_encode(*context, batch->prepared, made_call, views, workspace, workspace_size, request, made);
      });
}

// ---- Prepared decode, on a GPU ------------------------------------------------------------------------------

namespace {

dr_status on_its_device(const dr_batch* batch, const dr_place* place, dr::target& target, dr_error& error) {
  if (!batch) return fail(error, DR_E_ARGUMENT, "batch is NULL");
  if (const dr_status s = find_target(place, target, error)) return s;
  if (batch->where != target.where)
    return fail(error, DR_E_ARGUMENT, "place: not the one that the batch was prepared for");
  if (!batch->runs_on_device())
    return fail(error, DR_E_UNSUPPORTED, "batch: prepared decode is for GPUs; dr_decode and dr_merge do it on the CPU");
  return DR_OK;
}

// Outputs of a prepared decode: dense, and shaped as the batch's tensors.
dr_status check_batch_outputs(const dr::batch& b, std::span<const dr_tensor_out> outs, dr_error& error) {
  if (outs.size() != b.shapes.size())
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the batch has %zu tensors", outs.size(), b.shapes.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    const dr_tensor_out& o = outs[i];
    const dr::tensor_shape& s = b.shapes[i];
    if (o.index_dtype || o.flags || o.universe != s.universe || std::max(1u, o.width) != s.width ||
        (o.dtype != s.dtype && o.dtype != DR_F32) || (!o.values && s.universe) ||
        reinterpret_cast<uintptr_t>(o.values) % dr::value_size(o.dtype)) {
      fail(error, DR_E_ARGUMENT,
           "output %zu: not dense, not of its tensor's shape and type (or f32), NULL or misaligned", i);
      error.tensor = i;
      return DR_E_ARGUMENT;
    }
  }
  return DR_OK;
}

dr_status run_batch_decode(dr_context& c, const dr_batch* batch, const dr_place* place,
                           const dr::decode_request& request, const dr_tensor_out* outs, size_t stride, size_t n,
                           void* workspace, size_t workspace_size, dr_result* result) {
  dr::target target;
  if (const dr_status s = on_its_device(batch, place, target, c.error)) return s;
  if (const dr_status s = read_array(outs, stride, n, "outputs", c.outs, c.error)) return s;
  if (const dr_status s = check_batch_outputs(batch->prepared, c.outs, c.error)) return s;
  dr::device_queue queue{target.where, nullptr, target.stream};
  return dr::decode_on_device(batch->frames, request, c.outs, queue, workspace, workspace_size, result,
                              c.on_device.decoding, c.error);
}

}  // namespace

dr_status dr_batch_merge_workspace(const dr_batch* batch, size_t k, size_t* bytes) {
  if (!batch || !bytes) return DR_E_ARGUMENT;
  dr_error error{};
  return guarded(error, [&]() -> dr_status {
    dr::decode_shape shape;
    if (!batch->runs_on_device())
      if (const dr_status s = dr::shape_of_batch(batch->prepared, shape, error)) return s;
    *bytes = dr::device_decode_workspace(batch->runs_on_device() ? batch->frames : shape, k);
    return DR_OK;
  });
}

dr_status dr_batch_decode(dr_context* context, const dr_batch* batch, const dr_place* place, const void* frame,
                          size_t size, dr_tensor_out* outs, size_t stride, size_t n, void* workspace,
                          size_t workspace_size, dr_result* result) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    if (!frame) return fail(c.error, DR_E_ARGUMENT, "frame is NULL");
    const dr_bytes bytes{frame, size};
    dr::decode_request request{{&bytes, 1}};
    request.copies = true;
    return run_batch_decode(c, batch, place, request, outs, stride, n, workspace, workspace_size, result);
  });
}

dr_status dr_batch_merge(dr_context* context, const dr_batch* batch, const dr_place* place, const dr_bytes* frames,
                         const float* weights, size_t k, const dr_merge_options* options, dr_tensor_out* outs,
                         size_t stride, size_t n, void* workspace, size_t workspace_size, dr_result* result) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    const auto option = read_struct<dr_merge_options>(options);
    if (option.flags & ~uint32_t{DR_MERGE_ADD})
      return fail(c.error, DR_E_ARGUMENT, "merge: unknown flags 0x%x", option.flags);
    if (!frames && k) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
    for (size_t i = 0; i < k; ++i)
      if (!frames[i].data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
    dr::decode_request request{{frames, k}, weights};
    request.adds = option.flags & DR_MERGE_ADD;
    return run_batch_decode(c, batch, place, request, outs, stride, n, workspace, workspace_size, result);
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
  dr_error error{};
  if (head.magic == 0 || head.elements > (state_size - sizeof head) / 4 ||
      dr::check_residual(state, state_size, head.elements, false, error))
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
    i.plans = f.entries;
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

namespace {

dr_status decode_on_host(dr_context& c, const void* frame, size_t size, const dr_limits& limits,
                         std::span<dr_tensor_out> outs) {
  c.frames.resize(std::max<size_t>(1, c.frames.size()));
  dr::frame_view& f = c.frames[0];
  if (const dr_status s = read_sound_frame(frame, size, f, c.error, header_room(limits))) return s;
  if (const dr_status s = dr::check_outputs(f, outs, false, c.error)) return s;
  if (const dr_status s = decode_frames(c, {&f, 1}, outs, limits)) return s;
  dr::deliver(f, c.rows.data(), c.rooms.data(), *c.workers, outs);
  return DR_OK;
}

dr_status merge_on_host(dr_context& c, std::span<const dr_bytes> frames, const float* weights,
                        const dr_merge_options& option, std::span<dr_tensor_out> outs) {
  c.frames.resize(std::max(frames.size(), c.frames.size()));
  const std::span<dr::frame_view> views(c.frames.data(), frames.size());
  uint64_t room = header_room(option.limits);
  for (size_t i = 0; i < frames.size(); ++i) {
    dr_status s = read_sound_frame(frames[i].data, frames[i].size, views[i], c.error, room);
    room -= std::min(room, views[i].memory());
    if (!s) s = dr::check_outputs(views[i], outs, true, c.error);
    if (!s) continue;
    const dr_error inner = c.error;
    fail(c.error, s, "frame %zu: %s", i, inner.message);
    c.error.tensor = inner.tensor;
    return s;
  }
  if (const dr_status s = decode_frames(c, views, outs, option.limits)) return s;
  // Every frame is sound: from here on nothing fails.
  dr::merge(views, c.rows.data(), weights, option.flags & DR_MERGE_ADD, c.rooms.data(), *c.workers, outs);
  return DR_OK;
}

// Frames of whatever shape, in device memory: their headers come to the host, which waits for them, and for the end.
dr_status decode_unknown(dr_context& c, const dr::target& target, const dr::decode_request& request,
                         const dr_merge_options& option, std::span<dr_tensor_out> outs) {
  dr::device& where = *target.where;
  const auto failed = [&](dr_status s) { return s ? fail(c.error, s, "device: %s", where.reason()) : DR_OK; };
  std::vector<dr::frame_view> views(request.frames.size());
  std::vector<std::vector<uint8_t>> headers(views.size());
  bool by_host = false;
  uint64_t room = header_room(option.limits);
  for (size_t i = 0; i < views.size(); ++i) {
    const dr_bytes& f = request.frames[i];
    if (!f.data) return fail(c.error, DR_E_ARGUMENT, "frame %zu is NULL", i);
    constexpr size_t usual = 65536;
    dr_status s = DR_E_CORRUPT;
    for (size_t part = std::min(f.size, usual); s; part = f.size) {
      headers[i].resize(part);
      if (part)
        if (const dr_status e = failed(where.copy(target.stream, headers[i].data(), f.data, part))) return e;
      if (const dr_status e = failed(where.wait(target.stream))) return e;
      s = dr::read_header(headers[i].data(), part, f.size, views[i], c.error, room);
      if (part == f.size) break;
    }
    room -= std::min(room, views[i].memory());
    // Of a frame without rows all is here, so no kernel has to verify it.
    if (!s && views[i].rows.empty()) s = read_sound_frame(headers[i].data(), headers[i].size(), views[i], c.error);
    if (!s && views[i].tensors == 1 && outs.size() > 1)
      s = fail(c.error, DR_E_UNSUPPORTED, "frame: one tensor for many outputs (bucket=flat) has no CUDA path");
    if (!s) s = dr::check_outputs(views[i], outs, !request.copies, c.error);
    if (s) {
      const dr_error inner = c.error;
      if (!request.copies) fail(c.error, s, "frame %zu: %s", i, inner.message);
      c.error.tensor = inner.tensor;
      return s;
    }
  }
  uint64_t bytes = 0;
  if (const dr_status s = dr::decode_workspace(views, outs, option.limits, 1, bytes, c.error)) return s;
  std::vector<dr::decode_shape> shapes;
  for (const dr::frame_view& f : views) {
    bool host_would_do = false;
    if (const dr_status s = dr::shape_of_frame(f, shapes.emplace_back(), host_would_do, c.error)) {
      if (!(host_would_do && target.allows_host)) return s;
      by_host = true;
    }
  }
  if (by_host) {
    std::vector<std::vector<uint8_t>> kept;
    if (const dr_status s = dr::fetch_frames(request.frames, where, target.stream, kept, c.error)) return s;
    std::vector<dr_bytes> frames;
    for (const auto& k : kept) frames.push_back({k.data(), k.size()});
    dr::host_outputs host;
    if (const dr_status s = host.fetch(outs, request.adds, where, target.stream, c.error)) return s;
    if (const dr_status s = request.copies ? decode_on_host(c, frames[0].data, frames[0].size, option.limits, host.own)
                                           : merge_on_host(c, frames, request.weights, option, host.own))
      return s;
    return host.give_back(outs, where, target.stream, c.error);
  }
  // Frames of one shape go together; otherwise each is judged before the first is added.
  dr::join_shapes(shapes);
  const auto run = [&](const dr::decode_shape& shape, const dr::decode_request& part) -> dr_status {
    const uint64_t room = dr::device_decode_workspace(shape, part.frames.size());
    if (const dr_status s = c.on_device.reserve(target, room + 64 + sizeof(dr_result), c.error)) return s;
    auto* const result =
        reinterpret_cast<dr_result*>(static_cast<std::byte*>(c.on_device.at()) + (room + 63) / 64 * 64);
    dr::device_queue queue{target.where, nullptr, target.stream};
    if (const dr_status s = dr::decode_on_device(shape, part, outs, queue, c.on_device.at(), room, result,
                                                 c.on_device.decoding, c.error))
      return s;
    dr_result told{};
    if (const dr_status s = failed(where.copy(target.stream, &told, result, sizeof told))) return s;
    if (const dr_status s = failed(where.wait(target.stream))) return s;
    if (!told.status) return DR_OK;
    fail(c.error, told.fault, told.tensor, nullptr);
    if (!request.copies) {
      const dr_error inner = c.error;
      fail(c.error, told.status, "frame %td: %s", part.frames.data() - request.frames.data() + told.reserved,
           inner.message);
    }
    c.error.tensor = told.tensor;
    return told.status;
  };
  if (views.empty() || shapes.size() == 1) {
    if (shapes.empty()) {
      if (request.adds) return DR_OK;
      for (const dr_tensor_out& o : outs)
        if (const dr_status s = failed(
                where.clear(target.stream, o.values, o.universe * std::max(1u, o.width) * dr::value_size(o.dtype))))
          return s;
      return failed(where.wait(target.stream));
    }
    if (const dr_status s = run(shapes[0], request)) return s;
  } else {
    for (const bool delivers : {false, true})
      for (size_t i = 0; i < views.size(); ++i) {
        dr::decode_request part = request;
        part.frames = request.frames.subspan(i, 1);
        part.weights = request.weights ? request.weights + i : nullptr;
        part.adds = request.adds || i > 0;
        part.delivers = delivers;
        if (const dr_status s = run(shapes[i], part)) return s;
      }
  }
  if (!request.copies) return DR_OK;
  size_t row = 0;
  for (dr_tensor_out& o : outs) o.count = views[0].rows[row++].support;
  return DR_OK;
}

}  // namespace

dr_status dr_decode(dr_context* context, const dr_place* place, const void* frame, size_t size, const dr_limits* limits,
                    dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr::target target;
    if (const dr_status s = find_target(place, target, c.error)) return s;
    if (const dr_status s = read_outputs(c, outs, stride, n)) return s;
    const auto limit = read_struct<dr_limits>(limits);
    const dr_bytes bytes{frame, size};
    dr::decode_request request{{&bytes, 1}};
    request.copies = true;
    dr_merge_options option{};
    option.limits = limit;
    if (const dr_status s = target.where ? decode_unknown(c, target, request, option, c.outs)
                                         : decode_on_host(c, frame, size, limit, c.outs))
      return s;
    give_back(c, outs, stride);
    return DR_OK;
  });
}

dr_status dr_merge(dr_context* context, const dr_place* place, const dr_bytes* frames, const float* weights, size_t k,
                   const dr_merge_options* options, dr_tensor_out* outs, size_t stride, size_t n) {
  return in_context(context, [&](dr_context& c) -> dr_status {
    dr::target target;
    if (const dr_status s = find_target(place, target, c.error)) return s;
    if (!frames && k) return fail(c.error, DR_E_ARGUMENT, "frames is NULL");
    const auto option = read_struct<dr_merge_options>(options);
    if (option.flags & ~uint32_t{DR_MERGE_ADD})
      return fail(c.error, DR_E_ARGUMENT, "merge: unknown flags 0x%x", option.flags);
    if (const dr_status s = read_outputs(c, outs, stride, n)) return s;
    dr::decode_request request{{frames, k}, weights};
    request.adds = option.flags & DR_MERGE_ADD;
    if (const dr_status s = target.where ? decode_unknown(c, target, request, option, c.outs)
                                         : merge_on_host(c, {frames, k}, weights, option, c.outs))
      return s;
    give_back(c, outs, stride);
    return DR_OK;
  });
}
