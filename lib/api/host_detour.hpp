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

// Sets a result as kernels do (tell_result).
dr_status set_result_by_host(const dr_result& from, device& where, void* stream, dr_result* to);

// Copies frames from device memory to `on_host`.
dr_status fetch_frames(std::span<const dr_bytes> frames, device& where, void* stream,
                       std::vector<std::vector<uint8_t>>& on_host, dr_error& error);

// Outputs in host memory in place of those on a device, with their contents if `reads`.
class host_outputs {
 public:
  dr_status fetch(std::span<const tensor_out> outs, bool reads, device& where, void* stream, dr_error& error);
  dr_status copy_back(std::span<tensor_out> outs, device& where, void* stream, dr_error& error);
  std::vector<tensor_out> own;

 private:
  std::vector<std::vector<uint64_t>> values_, indices_, bases_;
};

}  // namespace dr
