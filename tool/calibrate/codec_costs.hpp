// What a plan takes on this machine: encode, merge and decode of one tensor, and the bytes of its frame.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "affine_fit.hpp"
#include "deepreduce/deepreduce.hpp"
#include "tool/read/inputs.hpp"

namespace dr::calibrate {

// Gradients that tensors of any size are cut from: element i of a tensor is values[(begin + i) % size].
struct gradient_pool {
  std::string name;           // "bundled", or the paths
  std::vector<float> values;  // never empty
  std::vector<float> cut(uint64_t begin, uint64_t elements) const;
};

struct timing_settings {
  double seconds = 0.15;  // of rounds, for each plan and size
  uint64_t seed = 0;
  uint64_t evicted_bytes = uint64_t{8} << 20;  // above a core's share of any cache but the last
};

// At one size. A value is the median of rounds: ns, and of the frame bytes.
struct costs_at {
  sample encode, merge, decode, frame;
};

// Adding a dense f32 tensor to another, as an exchange adds a gradient to a sum: timed likewise.
sample measure_add(const gradient_pool& data, uint64_t elements, const timing_settings& settings);

// Times rounds of encode, merge and decode by the wall clock, at least 5 and at most 200. Before each
// call `evicted_bytes` are gone through, of which the last 8 MiB are written, as a backward pass leaves no gradient in
// the near caches. Calls are those of a training step: a batch
// prepared and bound once, with its feedback state, which goes on from round to round.
//   merge   one frame added to a dense tensor of so many elements; decode: the same into a tensor that is overwritten.
//           So R frames take decode + (R - 1) merge
// Verified before anything is timed: merge adds to ones what decode yields, bit for bit in f32; with an exact plan
// that is the gradient. Throws dr::error, or std::runtime_error if that does not hold.
costs_at measure_at(context& c, const plan& p, const gradient_pool& data, uint64_t elements,
                    const timing_settings& settings);

// (ranks, bytes of a frame of the ranks' sum / bytes of a frame of one) for 2, 4 and 8 ranks, each encoded by the plan
// with fresh feedback, as an owner of a range encodes the sum. Ranks' gradients are cuts of `data` one behind the other,
// or those of `ranks` that are given; then only numbers of ranks up to theirs.
std::vector<std::pair<uint32_t, double>> sum_growth(context& c, const plan& p, const gradient_pool& data,
                                                    std::span<const std::vector<float>> ranks, uint64_t elements,
                                                    uint64_t seed);

// Of a plan that is a transform, on one square matrix of as many elements, or a few less. encode: until the first factor is
// there; decode: all behind it, whatever the number of ranks. `frame` is none.
costs_at measure_factors_at(context& c, const plan& p, const gradient_pool& data, uint64_t elements,
                            const timing_settings& settings);

// |g - c| / |g| of what arrives of one step, without anything kept before: root of the mean of the tensors' squares, weighted
// by their elements.
double error_of(context& c, const plan& p, std::span<const compare::tensor> tensors, uint64_t seed);

}  // namespace dr::calibrate
