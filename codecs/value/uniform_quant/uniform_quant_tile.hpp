// value=uniform_quant on a GPU: shared by its kernels.
#pragma once

#include <cstdint>

#include "codecs/family/levels/level_code.hpp"
#include "codecs/value/uniform_quant/uniform_quant_search_kernel.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr unsigned uniform_quant_lanes = 256;
inline constexpr uint32_t uniform_quant_head = 9;  // bytes: kind, base, step

struct uniform_quant_common {
  std::byte* scratch;  // a job's begins 64 · extra in
  double error;        // encode, as the next two
  uint32_t bits;
  uint32_t round;  // the launch's number in its call
  uint32_t dtype;

  DR_HD std::byte* of(const tile_job& job) const { return scratch + uint64_t{64} * job.extra; }
};

DR_HD inline float uniform_quant_value(float base, float step, uint32_t level) {
  const float v = base + step * static_cast<float>(level);
  return v < FLT_MAX ? v : FLT_MAX;
}

}  // namespace dr
