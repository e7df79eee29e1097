// What the layout of a decode's memory on a GPU is made of (device_decode_work in device_decode.hpp).
#pragma once

#include "pipeline/device_decode.hpp"

namespace dr {

constexpr uint64_t slack = 32;  // readable past the end of a buffer, because kernels read words

// Whether a payload of values is the values, so that no codec has to run.
bool copies_values(const wire_plan& plan);
// Whether the section of a list is read where it is in the frame.
bool reads_frames(const stage_list& list);
stream_shape stream_of(const decode_shape& shape, size_t row, uint32_t s);
dr_need need_of(const stage_list& list, const stream_shape& shape, dr_size_rule* rule = nullptr);

}  // namespace dr
