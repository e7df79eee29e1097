// The numbers of a row (a segment of a tensor) that depend on data, on a GPU: in device memory, zero when a call
// begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/host_device.hpp"
#include "deepreduce/deepreduce.h"
#include "primitive/row_mode.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint32_t row_tile = 2048;  // elements of a row a block, in launches over rows

inline constexpr uint32_t state_refused = 1u << 31;

struct device_row {
  dr_fault fault;
  uint64_t count;          // selected by the sparsifier, and listed
  uint64_t support_count;  // of the support that decode returns
  uint64_t order_count;
  uint64_t size[section_count];  // payload bytes of the sections, in their order on the wire
  uint64_t decoded_size;         // of the decoded values, with feedback
  // ~position of the first value of the support that is not finite; 0: there is none. Of a bucket with a state that is
  // refused: of the first element of its tensor.
  uint64_t not_finite;
  uint32_t mode;  // row_mode
  // With feedback: its states that are sound, to which the gradient is added; state_refused: one is not.
  uint32_t accumulates;
  uint64_t offset;  // decode: of the payload in the frame
  // Encode: selected where the plan says that the row is then sent dense, and none is listed; otherwise 0.
  uint64_t unlisted;
};
static_assert(sizeof(device_row) == 128);

// Value `at` of a row is not finite, and its sender requires finite ones; the first one is reported.
DR_HD inline void refuse_value(device_row* row, uint64_t at) {
  atomic_max(&row->not_finite, ~at);
  raise(&row->fault, DR_E_ARGUMENT, DR_STREAM_VALUE, 0, 0);
}

// Copies to a caller's result as far as the caller's version of the struct reaches, which is stored in device memory.
// Nothing is written to a struct without a status.
DR_HD inline void tell_result(const dr_result& from, dr_result* to) {
  const uint64_t own = to->struct_size, size = own < sizeof from ? own : sizeof from;
  if (size < offsetof(dr_result, status) + sizeof from.status) return;
#pragma unroll
  for (uint64_t at = offsetof(dr_result, size); at < sizeof from;
       at += 4)  // (constant offsets, so `from` stays in registers)
    if (at + 4 <= size)
      std::memcpy(reinterpret_cast<uint8_t*>(to) + at, reinterpret_cast<const uint8_t*>(&from) + at, 4);
}

inline constexpr uint64_t no_tensor = ~uint64_t{0}, no_frame = ~uint64_t{0};

// Sets the result of a call. Selected rows are not counted on a device.
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
  tell_result(r, to);
}

}  // namespace dr
