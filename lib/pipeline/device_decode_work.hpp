// The layout of a decode's memory on a GPU: in one workspace, or only measured.
#pragma once

#include "core/arena.hpp"
#include "pipeline/device_decode.hpp"

namespace dr {

constexpr uint64_t slack = 32;  // readable past the end of a buffer, because kernels read words

struct device_decode_work {
  std::byte* zero = nullptr;  // the part that a call zeroes first
  uint64_t zero_size = 0, size = 0;
  device_row* rows = nullptr;
  unpack_result* result = nullptr;
  uint64_t* made = nullptr;
  unpack_state* state = nullptr;
  gate_state *gate = nullptr, *back = nullptr;
  uint64_t* patched = nullptr;  // of a patch: the checks of base and result of every row, as found
  std::byte* blob = nullptr;    // descriptors

  // base nullptr: only measures. Fills the rows, scratch, bitmaps and sorts of `host`.
  static device_decode_work lay_out(const decode_shape& shape, size_t frames, std::byte* base,
                                    device_decode_scratch& host);
};

// Whether a payload of values is the values, so that no codec has to run.
bool copies_values(const wire_plan& plan);
// Whether the section of a list is read where it is in the frame.
bool reads_frames(const stage_list& list);
stream_shape stream_of(const decode_shape& shape, size_t row, uint32_t s);
dr_need need_of(const stage_list& list, const stream_shape& shape, dr_size_rule* rule = nullptr);

}  // namespace dr
