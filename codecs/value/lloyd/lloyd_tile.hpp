// value=lloyd on a GPU: shared by encode and decode.
#pragma once

#include <cstdint>

#include "codecs/family/levels/table_choice.hpp"
#include "codecs/value/lloyd/lloyd_points_kernel.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr unsigned lloyd_lanes = 256;

// Launches of encode. Those of the sample, and the second ones, which look at all, are for jobs of more than lloyd_all
// values.
enum lloyd_launch : uint32_t {
  lloyd_ranges,
  lloyd_samples,
  lloyd_finds,
  lloyd_quantises,
  lloyd_finds_again,
  lloyd_quantises_again,
  lloyd_codes,
  lloyd_launches
};

struct lloyd_common {
  std::byte* scratch;  // a job's begins 64 · extra in
  double price;        // encode, as the next two
  uint32_t requested;
  uint32_t launch;  // which one of its call
  uint32_t dtype;

  DR_HD std::byte* of(const tile_job& job) const { return scratch + uint64_t{64} * job.extra; }
};

}  // namespace dr
