// What the handles of the C ABI are, and what every function of it begins with.
#pragma once

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "capi/guard.hpp"
#include "capi/on_device.hpp"
#include "core/pool.hpp"
#include "core/versioned.hpp"
#include "deepreduce/deepreduce.h"
#include "pipeline/decode.hpp"
#include "pipeline/device_decode.hpp"
#include "pipeline/encode.hpp"

namespace dr {

inline constexpr uint32_t threads_max = 256;
// The flags that calls take.
inline constexpr uint32_t call_flags = DR_CALL_TAG | DR_CALL_STATUS_FRAME | DR_CALL_LIST | DR_CALL_FIT,
                          decode_flags = DR_DECODE_ADD | DR_DECODE_TAG, place_flags = DR_PLACE_ALLOW_HOST;

}  // namespace dr

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
namespace dr {

// A batch that dr_encode may need again.
struct cached_batch {
  std::shared_ptr<const dr::plan> method;
  std::vector<std::shared_ptr<const dr::plan>> plans;
  std::vector<dr::tensor_shape> shapes;
  uint64_t segment_rows;
  ::dr_batch prepared;
};
// Tensors of a call, in our version of the struct.
struct tensors {
  std::vector<dr_tensor> views;
  std::vector<std::shared_ptr<const dr::plan>> plans;

  dr_status read(const dr_tensor* from, size_t stride, size_t n, dr_error& error);
};

}  // namespace dr

struct dr_context {
  dr_context_options options{};
  std::unique_ptr<dr::pool> workers;
  dr::pool serial{1};
  dr_error error = dr::no_error();
  void* workspace = nullptr;
  size_t workspace_size = 0;
  dr::device_memory on_device;
  // Of the call under way; they keep their room, so that steady state allocates nothing.
  dr::tensors list;
  std::vector<dr_tensor_out> outs;
  std::vector<dr::frame_view> frames;
  std::vector<dr::decoded_row> rows;
  std::vector<dr::deliver_room> rooms;
  std::vector<dr::out_range> ranges;
  std::vector<std::unique_ptr<dr::cached_batch>> batches;  // of dr_encode, the latest first

  ~dr_context() {
    drop_workspace();
    if (lost()) (void)workers.release();  // its threads are not here; waiting for them would never end
  }
  // In a forked child: the context has threads, and they stayed behind.
  bool lost() const { return workers && workers->lost(); }
  // Gives back what is kept for the next call.
  dr_status trim() {
    if (const dr_status s = on_device.trim(error)) return s;
    drop_workspace();
    const auto drop = [](auto&... kept) { ((kept = std::remove_reference_t<decltype(kept)>()), ...); };
    drop(list, outs, frames, rows, rooms, ranges, batches);
    return DR_OK;
  }
  void drop_workspace() {
    if (workspace) options.release(options.user, workspace, workspace_size);
    workspace = nullptr;
    workspace_size = 0;
  }
  // A batch has scratch for the workers that it was prepared for.
  dr::pool& workers_for(const dr::batch& b) { return workers->workers() <= b.workers ? *workers : serial; }
  // Grows and stays: steady state allocates nothing.
  dr_status reserve(uint64_t size) {
    if (size <= workspace_size) return DR_OK;
    drop_workspace();
    workspace = size > SIZE_MAX / 4 ? nullptr : options.allocate(options.user, size, dr::arena::alignment);
    if (!workspace) return dr::fail(error, DR_E_MEMORY, "workspace: no %" PRIu64 " bytes to be had", size);
    workspace_size = size;
    return DR_OK;
  }
};

namespace dr {

// For functions that have no context: the error goes to the caller's dr_error.
template <class F>
dr_status reported(dr_error* out, F&& f) noexcept {
  dr_error error = no_error();
  const dr_status status = guarded(error, [&] { return f(error); });
  if (status) hand_over(error, out);
  return status;
}

// What a context says in a forked child.
inline dr_status fail_lost(dr_context& context) {
  return fail(context.error, DR_E_ARGUMENT,
              "context: this process was forked, and its %u threads stayed behind; make a context here",
              context.workers->workers() - 1);
}

// For functions with one: it remembers.
template <class F>
dr_status in_context(dr_context* context, F&& f) noexcept {
  if (!context) return DR_E_ARGUMENT;
  if (context->lost()) [[unlikely]]
    return fail_lost(*context);
  return guarded(context->error, [&] { return f(*context); });
}

dr_status find_target(const dr_place* place, target& out, dr_error& error);

// An array of caller's structs, `stride` apart.
template <class T>
dr_status read_array(const void* from, size_t stride, size_t n, const char* what, std::vector<T>& out,
                     dr_error& error) {
  out.clear();
  if (n == 0) return DR_OK;
  if (!from) return fail(error, DR_E_ARGUMENT, "%s is NULL", what);
  if (stride < struct_size_min)
    return fail(error, DR_E_ARGUMENT, "%s: stride %zu is smaller than a struct", what, stride);
  out.resize(n);
  for (size_t i = 0; i < n; ++i)
    if (const void* const at = static_cast<const char*>(from) + i * stride;
        const dr_status s = read_struct(at, what, out[i], error, stride)) {
      char which[32];
      std::snprintf(which, sizeof which, "%s %zu", what, i);
      read_struct(at, which, out[i], error, stride);
      error.tensor = i;
      return s;
    }
  return DR_OK;
}

// What a caller is told of a call; `error` counts if it failed.
inline dr_result result_of(dr_status status, const encode_result& made, const dr_error& error) {
  if (!status)
    return {sizeof(dr_result), made.size, DR_OK, DR_STREAM_NONE, DR_NO_TENSOR, 0, 0, DR_NO_FRAME, 0, made.kept};
  const dr_error& e = error;
  return {sizeof(dr_result), 0, status, e.stream, e.tensor, e.where, e.what, e.frame, e.needed, 0};
}

dr_status prepare_batch(dr_context& context, const dr_plan* plan, const tensors& t, uint64_t segment_rows, batch& out);

// ---- Prepared calls: their memory is the caller's, or a binding's -----------------------------------------

struct prepared_memory {
  void* workspace = nullptr;
  size_t workspace_size = 0;
  bool checked = false;                            // the tensors, or outputs that are all dense: when they were bound
  const std::vector<out_range>* ranges = nullptr;  // of outputs that were bound
};

// Tensors and outputs in our version. `result`, if any, is told on the CPU; on a device the kernels tell it.
dr_status encode_prepared(dr_context& context, const ::dr_batch& batch, const target& where, const dr_call* call,
                          std::span<const dr_tensor> tensors, const prepared_memory& memory, void* frame,
                          size_t capacity, dr_result* result);

struct prepared_frames {
  std::span<const dr_bytes> list;
  const float* weights = nullptr;
  bool copies = false;  // a decode; otherwise a merge
};
dr_status decode_prepared(dr_context& context, const ::dr_batch& batch, const target& where,
                          const prepared_frames& frames, const dr_decode_options* options,
                          std::span<dr_tensor_out> outs, const prepared_memory& memory, dr_result* result);
// Workspace for a decode or a merge of k frames.
dr_status decode_room(const ::dr_batch& batch, size_t k, size_t& bytes, dr_error& error);
// Whether a batch decodes such outputs, all of them dense if it runs on a device.
dr_status check_batch_outputs(const ::dr_batch& batch, std::span<const dr_tensor_out> outs, dr_error& error);

}  // namespace dr
