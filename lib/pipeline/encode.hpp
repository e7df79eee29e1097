// Dense or sparse gradients to a frame.
#pragma once

#include "core/pool.hpp"
#include "pipeline/batch.hpp"

namespace dr {

struct encode_call {
  uint64_t step = 0, seed = 0, private_seed = 0, tag = 0;
  uint32_t flags = 0;
  void (*trace)(void*, const dr_trace*) = nullptr;
  void* trace_user = nullptr;
  bool checked = false;  // check_tensors has passed these tensors
};

struct encode_result {
  uint64_t size = 0;
  uint64_t tensor = DR_NO_TENSOR;
  dr_fault fault = no_fault();
};

// Bytes of workspace that encode takes for a batch. (What the same code takes when it only measures.)
uint64_t encode_workspace(const batch& b);

dr_status encode(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers,
                 void* workspace, uint64_t workspace_size, uint8_t* frame, uint64_t capacity, encode_result& result,
                 dr_error& error);

}  // namespace dr
