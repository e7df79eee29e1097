// Encode for a context: on the CPU, on a device, or by the host for a device.
#pragma once

#include "api/context.hpp"
#include "pipeline/encode.hpp"

namespace dr {

struct encode_request {
  encode_call call;
  target where;
  uint8_t* frame = nullptr;
  size_t capacity = 0;
  dr_result* result = nullptr;  // on a device, in its memory: the kernels fill it
};

// The step of a call with DR_CALL_STEP_AT, which has been read.
inline void set_step(encode_call& call, uint64_t step) {
  call.step = step;
  if (call.flags & DR_CALL_TAG) call.tag += step;
  call.flags &= ~uint32_t{DR_CALL_STEP_AT};
}

// A prepared batch; the workspace is the caller's.
dr_status encode_placed(context& c, const placed_batch& b, const encode_request& request,
                        std::span<const tensor_view> tensors, void* workspace, uint64_t workspace_size,
                        encode_result& made);
// The tensors of the context's list, whose batch is found or prepared; the workspace is the context's.
dr_status encode_list(context& c, const batch_request& method, const encode_request& request, encode_result& made);

// The result of a call; `error` counts if it failed.
dr_result result_of(dr_status status, const encode_result& made, const dr_error& error);
// Writes the status frame of a failed call in host memory, if the caller asked for one and it fits. Returns its size,
// or 0.
size_t write_failure(const encode_request& request, dr_status status, const dr_error& error);

}  // namespace dr
