// value=log_quant on a GPU: shared by encode and decode.
#pragma once

#include <cstdint>

#include "codecs/family/levels/table_choice.hpp"
#include "codecs/value/log_quant/log_quant_kernel.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr unsigned log_quant_lanes = 256;
inline constexpr uint32_t log_quant_tile = level_block;  // values of a block of lanes

struct log_quant_common {
  std::byte* scratch;  // a job's begins 64 · extra in
  uint32_t dtype;
  uint32_t bits, range;  // encode

  DR_HD std::byte* of(const tile_job& job) const { return scratch + uint64_t{64} * job.extra; }
};

}  // namespace dr
