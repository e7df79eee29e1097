// Checks that a frame decodes to what its plan promises.
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

// A tensor as encode takes it: `values` of t's type and shape.
dr_tensor source_of(const tensor& t, const void* values);

// How to decode into what the sparsifier was given: elements, or coefficients of a cosine transform.
dr_decode_options as_selected(const plan_reading& plan);

// Decodes both ways and throws verify_error unless
// - the header has the tensor's shape, and both ways return the same tensor;
// - an exact index codec (or the fallback to raw keys) returns the support `selected`;
// - an exact value codec returns the values of g at the decoded support, bit for bit, or without regather those at
//   `selected`, in order; a dense fallback returns s itself.
// With feedback g is gradient + residual, with a cosine transform its coefficients. position: of the tensor in the frame; `info` describes it.
decoded_tensor verify(context& c, const tensor& g, const plan_reading& plan, std::span<const uint64_t> selected,
                      std::span<const std::byte> frame, const dr_tensor_info& info, uint64_t position = 0);

// Throws verify_error unless merging two frames of the same tensors returns the sum of their decoded tensors, in f32.
// elements: the size of each tensor.
void verify_merge(context& c, const plan_reading& plan, std::span<const uint64_t> elements,
                  std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace dr::compare
