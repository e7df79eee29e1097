// The lanes of a block in several control flows ("strands"), for tests that one loop over lanes cannot make: that
// code between phases is uniform, and that each barrier is needed. Every strand runs the kernel for its share of the
// lanes, on a stack of its own; in turn, each up to the next barrier. Where a barrier is left out, the first is through
// the next phase before the last has begun the one before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/device.hpp"
#include "primitive/block.hpp"

namespace dr {

class strands {
 public:
  strands(const dr_kernel& kernel, uint32_t n);
  ~strands();

  // Runs a block whose lanes are dealt out in this order. False if the strands come to different barriers: a GPU would
  // hang, or worse. (Then they are left where they stand.)
  bool run(const emulated_grid& grid, std::span<const uint32_t> order, uint32_t block, uint32_t grid_phase,
           const void* args);

 private:
  class member;
  struct order_marks {
    char begin, end, barrier[2];
  } marks_;  // only their addresses matter
  std::vector<std::unique_ptr<member>> members_;
};

}  // namespace dr
