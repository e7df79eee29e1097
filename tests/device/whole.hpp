// Whole plans on the emulated device, through the C ABI: frames, states of feedback, outputs and sums against the CPU's.
#pragma once

#include <deepreduce/deepreduce.h>

#include "device/twin.hpp"

namespace dr::device_tests {

struct whole_tensor {
  dr_dtype dtype;
  uint64_t universe;
  uint32_t width;
  double zeros;          // this part of the rows is zero; of a patch, equal to its base
  uint64_t count;        // of a sparse one; 0: dense
  dr_dtype index_dtype;  // of a sparse one
  double plateau = 0;    // this part has one of two neighbouring values, for a selection to tell apart
};

// What the CPU makes of it is worked out once.
class whole_call {
 public:
  whole_call(std::string plan, std::vector<whole_tensor> tensors, uint64_t segment_rows = 0);
  ~whole_call();
  whole_call(whole_call&&) noexcept;

  // Three steps of encode, then decode and merge of their frames (patches are applied instead), in a prepared batch.
  std::string differs(const order& how) const;

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

// In small, every codec and sparsifier in some plan; but for codecs without CUDA operations.
std::vector<whole_call> whole_calls();

}  // namespace dr::device_tests
