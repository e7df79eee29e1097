// HiPress's planner, SeCoPa (Bai et al., SOSP 2021; the formulas and constants of its published code): a comparison, not
// our model. It reproduces SeCoPa's decisions and its faults:
//   the cost of decode is proportional to the compressed size instead of the restored one: about 35 times too little;
//   aggregation is free;
//   stages are summed: nothing overlaps, though CaSync overlaps them;
//   partitions only divide sizes, N is 4, 8 or 16, and every tensor shrinks by the same ratio.
#pragma once

#include <cstdint>

namespace dr::predict {

enum class hipress_topology { ps, ring };

struct hipress_plan {
  bool compress = false;
  uint32_t partitions = 1;                 // of the best choice
  double dense_ms = 0, compressed_ms = 0;  // with the best number of partitions
};

// A gradient of `bytes` bytes of f32 on 4, 8 or 16 nodes. honest_decode: cost of decode by the restored size.
hipress_plan hipress_decision(double bytes, uint32_t nodes, hipress_topology topology, bool honest_decode = false);

// The smallest gradient that it compresses, in bytes.
double hipress_threshold(uint32_t nodes, hipress_topology topology);

}  // namespace dr::predict
