// Whether a frame decodes to what its plan promises.
#pragma once

#include <span>
#include <stdexcept>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_text.hpp"

namespace dr::compare {

struct verify_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct decoded_tensor {
  std::vector<std::byte> dense;   // [d] of g's type
  std::vector<uint64_t> support;  // ascending
};

dr_dtype abi_dtype(dtype type);

// Decodes both ways and throws verify_error unless
// - the header tells the tensor's shape, and both ways give the same tensor;
// - an exact index codec (or raw keys, as a fallback) gives the support `kept`;
// - an exact value codec gives the values of g at the decoded support, bit for bit, or without regather those at
//   `kept` in order; a dense fallback gives s itself.
// With feedback g is what it made of the gradient. position: of the tensor in the frame, which `info` is of.
decoded_tensor verify(context& c, const tensor& g, const plan_reading& plan, std::span<const uint64_t> kept,
                      std::span<const std::byte> frame, const dr_tensor_info& info, uint64_t position = 0);

// Throws verify_error unless merging two frames of the same tensors gives the sum of what they decode to, in f32.
// elements: of each tensor of the frames.
void verify_merge(context& c, std::span<const uint64_t> elements, std::span<const std::byte> a,
                  std::span<const std::byte> b);

}  // namespace dr::compare
