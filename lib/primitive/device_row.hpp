// What data decides of a row (a segment of a tensor) on a GPU: in device memory, zero when a call begins.
#pragma once

#include <cstdint>
#include <cstring>

#include "deepreduce/deepreduce.h"
#include "primitive/block.hpp"

namespace dr {

struct device_row {
  dr_fault fault;
  uint64_t count;  // that the sparsifier kept
  uint64_t told;   // of the support that decode gives
  uint64_t order_told;
  uint64_t size[3];       // payload bytes of the sections, in their order on the wire
  uint64_t decoded_size;  // of what the receiver will see, with feedback
  uint64_t not_finite;    // ~position of the first value of the support that is not finite; 0: there is none
  uint32_t mode;          // row_mode
  uint32_t accumulates;   // with feedback: its state is one, so what comes is added to it
  uint64_t offset;        // decode: of the payload in the frame
};
static_assert(sizeof(device_row) == 120);

// Fills a caller's result in device memory, as much as its version of the struct has room for. Kept rows are not counted there.
DR_HD inline void set_result(dr_result* to, const dr_fault& fault, uint64_t size, uint64_t tensor, uint64_t frame) {
  dr_result r{};
  r.size = size;
  r.status = fault.code;
  r.stream = fault.stream;
  r.tensor = tensor;
  r.where = fault.where;
  r.what = fault.what;
  r.frame = frame;
  r.needed = fault.code == DR_E_CAPACITY && fault.stream == DR_STREAM_NONE ? fault.where : 0;
  const uint64_t words = (to->struct_size < sizeof r ? to->struct_size : sizeof r) / 8;
  for (uint64_t i = 1; i < words; ++i)
    std::memcpy(reinterpret_cast<uint8_t*>(to) + 8 * i, reinterpret_cast<const uint8_t*>(&r) + 8 * i, 8);
}

}  // namespace dr
