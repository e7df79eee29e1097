// Values of a dense row that a threshold selected, but of which there were too many to be listed: on a GPU they are selected
// again where they are read.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// A value's bits if it is selected, else +0. low: the smallest magnitude that is, at least 1.
DR_HD inline uint32_t bits_from(uint32_t dtype, uint32_t bits, uint32_t low) {
  return (bits & (dtype == DR_F32 ? f32_type::magnitude_mask : f16_type::magnitude_mask)) >= low ? bits : 0;
}
// The value that is sent of a sum of feedback.
DR_HD inline uint32_t bits_of_sum(uint32_t dtype, float sum) {
  return with_value_type(dtype, [&](auto type) -> uint32_t { return rounded_finite<decltype(type)>(sum); });
}

}  // namespace dr
