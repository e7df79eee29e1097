// The lanes of a block in several control flows ("strands"), for tests that a loop over lanes cannot make: that code
// between phases is uniform, and that every barrier is needed. A strand runs the kernel for its share of the lanes, on
// a stack of its own; strands run in turn, up to the next barrier. Without a barrier the first strand completes the
// next phase before the last one begins the previous phase.
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

  // Runs a block, whose lanes are assigned in this order. False if the strands reach different barriers, where a GPU
  // might hang. (Then they are abandoned.) jitter: not 0: another order of the strands after every barrier.
  bool run(const emulated_grid& grid, std::span<const uint32_t> order, uint32_t block, uint32_t grid_phase,
           const void* args, uint64_t jitter = 0);

 private:
  class member;
  void shuffle_turns(uint64_t key);

  struct order_marks {
    char begin, end, barrier[2];
  } marks_;  // only their addresses matter
  std::vector<std::unique_ptr<member>> members_;
  std::vector<uint32_t> turns_;  // the order in which they run
};

}  // namespace dr
