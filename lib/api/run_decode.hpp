// Decode and merge for a context: of any frames or a prepared batch's, on the CPU or on a device.
#pragma once

#include "api/context.hpp"
#include "pipeline/device_decode.hpp"

namespace dr {

// A prepared decode, whose memory is the caller's.
struct prepared_memory {
  void* workspace = nullptr;
  size_t workspace_size = 0;
  bool checked = false;                            // the outputs, all dense, were checked when they were bound
  const std::vector<out_range>* ranges = nullptr;  // of outputs that were bound
};

// A decode (request.copies) or a merge of frames in host memory.
struct host_decode {
  const dr_decode_options& options;
  const placed_batch* batch = nullptr;  // whose frames they must be; nullptr: any, with the context's workspace
  prepared_memory memory{};
};
dr_status decode_on_host(context& c, const decode_request& request, const host_decode& how, std::span<tensor_out> outs);

// A merge into such outputs in two calls, of which only the first can fail if the type and capacity of the outputs suffice
// for any such frames. `decoded` refers to memory that the first call allocates from `memory`; it stays valid until the
// second, which has the same request but for its frames, and allocates from `memory`, too.
dr_status decode_ahead(context& c, const decode_request& request, const host_decode& how, std::span<tensor_out> outs,
                       arena& memory, std::span<const decoded_frame>& decoded);
dr_status merge_decoded(context& c, const decode_request& request, const host_decode& how, std::span<tensor_out> outs,
                        arena& memory, std::span<const decoded_frame> decoded);
// The memory that it uses in addition to a decode: a place per row.
uint64_t rows_ahead(size_t rows);

// Frames of whatever shape in device memory: their headers come to the host, which waits for them, and for the end.
dr_status decode_from_device(context& c, const target& t, const decode_request& request,
                             const dr_decode_options& options, std::span<tensor_out> outs);

// Frames of whatever shape at the target.
dr_status decode_any(context& c, const target& t, const decode_request& request, const dr_decode_options& options,
                     std::span<tensor_out> outs);
// Frames of a prepared batch at its place. On a device `result` is in its memory: the kernels fill it, and nobody
// waits.
dr_status decode_placed(context& c, const placed_batch& b, const target& t, const decode_request& request,
                        const dr_decode_options& options, std::span<tensor_out> outs, const prepared_memory& memory,
                        dr_result* result);

inline decode_request decode_of(const dr_bytes& frame) {
  decode_request r{{&frame, 1}};
  r.copies = true;
  return r;
}
// What the flags of a call ask for. A decode that adds is a merge of its one frame. ARGUMENT: a decode has no votes.
inline dr_status read_flags(const dr_decode_options& o, decode_request& r, dr_error& error) {
  r.adds = o.flags & DR_DECODE_ADD;
  r.votes = o.flags & DR_DECODE_VOTE;
  if (r.copies && r.votes)
    return fail(error, DR_E_ARGUMENT, "options: DR_DECODE_VOTE is for merges; one frame is decoded as it is");
  r.copies = r.copies && !r.adds;
  return DR_OK;
}

// ARGUMENT: a merge of patches.
inline dr_status check_applied(const decode_request& r, const dr_decode_options& o, dr_error& error) {
  if (r.copies || !(o.flags & DR_DECODE_APPLY)) return DR_OK;
  return fail(error, DR_E_ARGUMENT, "options: DR_DECODE_APPLY is for decodes; patches are not merged");
}
// UNSUPPORTED, on a device: an output brings the sums of its base, or a history.
dr_status check_bare(std::span<const tensor_out> outs, dr_error& error);

}  // namespace dr
