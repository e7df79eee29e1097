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
  // One of the caller's structs per tensor, of any version; nullptr: not requested. Only faults are written.
  dr_fault* faults = nullptr;
  size_t fault_stride = 0;
  bool checked = false;  // check_tensors and check_states_apart have passed these tensors
};

struct encode_result {
  uint64_t size = 0;
  uint64_t kept = 0;  // rows in the frame
};

// The workspace of an encode in bytes. (Measured by the code that lays it out.)
uint64_t encode_workspace(const batch& b);
// place_payloads.cpp: bytes of capacity beyond a frame's rows that are needed to write payloads in place.
uint64_t payload_excess(const batch& b);

dr_status encode(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers,
                 void* workspace, uint64_t workspace_size, uint8_t* frame, uint64_t capacity, encode_result& result,
                 dr_error& error);

}  // namespace dr
