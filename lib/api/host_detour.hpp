// For plans with a codec that has no CUDA operations, if the caller allows it: to the CPU and back, with copies and a
// wait.
#pragma once

#include <span>
#include <vector>

#include "core/pool.hpp"
#include "cuda/device.hpp"
#include "pipeline/decode.hpp"
#include "pipeline/encode.hpp"

namespace dr {

// As encode, of tensors, states and a frame in device memory.
dr_status encode_by_host(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers,
                         device& where, void* stream, uint8_t* frame, uint64_t capacity, encode_result& result,
                         dr_error& error);

// As kernels set a result (tell_result).
dr_status tell_by_host(const dr_result& from, device& where, void* stream, dr_result* to);

// Frames from device memory, in host memory that `kept` holds.
dr_status fetch_frames(std::span<const dr_bytes> frames, device& where, void* stream,
                       std::vector<std::vector<uint8_t>>& kept, dr_error& error);

// Outputs of host memory in place of those on a device: as they are there if `reads`; and back.
class host_outputs {
 public:
  dr_status fetch(std::span<const tensor_out> outs, bool reads, device& where, void* stream, dr_error& error);
  dr_status give_back(std::span<tensor_out> outs, device& where, void* stream, dr_error& error);
  std::vector<tensor_out> own;

 private:
  std::vector<std::vector<uint64_t>> values_, indices_;
};

}  // namespace dr
