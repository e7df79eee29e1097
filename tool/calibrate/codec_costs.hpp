// The costs of a plan on this machine: encode, merge and decode of one tensor, and the bytes of its frame.
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

// The source of tensors of any size: element i of a tensor is values[(begin + i) % size].
struct gradient_pool {
  std::string name;           // "bundled", or the paths
  std::vector<float> values;  // never empty
  std::vector<float> cut(uint64_t begin, uint64_t elements) const;
};

struct timing_settings {
  double seconds = 0.15;  // of rounds, per plan and size
  uint64_t seed = 0;
  uint64_t evicted_bytes = uint64_t{8} << 20;  // above a core's share of any cache but the last
};

// Costs at one size: medians over rounds, in ns, and the bytes of the frame.
struct costs_at {
  sample encode, merge, decode, frame;
};

// Adding a dense f32 tensor to another, as an exchange adds a gradient to a sum, timed the same way.
sample measure_add(const gradient_pool& data, uint64_t elements, const timing_settings& settings);

// Times rounds of encode, merge and decode by the wall clock, at least 5 and at most 200. Before every
// call it reads `evicted_bytes` and writes the last 8 MiB of them, since a backward pass leaves no gradient in the near
// caches. Calls are those of a training step: a batch, prepared and bound once, whose feedback state continues from round
// to round.
//   merge   adds one frame to a dense tensor; decode overwrites the tensor.
//           So R frames take decode + (R - 1) merge
// Verified before it is timed: merge into ones adds the decoded tensor, bit for bit in f32; with an exact plan that is
// the gradient. Throws dr::error, or std::runtime_error if that does not hold.
costs_at measure_at(context& c, const plan& p, const gradient_pool& data, uint64_t elements,
                    const timing_settings& settings);

// (ranks, bytes of a frame of the ranks' sum / bytes of a frame of one) for 2, 4 and 8 ranks, encoded by the plan with
// fresh feedback, as an owner of a range encodes the sum. Ranks' gradients are consecutive cuts of `data`, or those of
// `ranks` if given, which then limit the number of ranks.
std::vector<std::pair<uint32_t, double>> sum_growth(context& c, const plan& p, const gradient_pool& data,
                                                    std::span<const std::vector<float>> ranks, uint64_t elements,
                                                    uint64_t seed);

// For a transform, on one square matrix of that many elements, or slightly fewer. encode: up to the first factor; decode:
// the rest, for any number of ranks. There is no `frame`.
costs_at measure_factors_at(context& c, const plan& p, const gradient_pool& data, uint64_t elements,
                            const timing_settings& settings);

// |g - c| / |g| of one step without a residual: root mean square over the tensors, weighted by elements.
// Of a transform over the matrices, since it sends a vector unchanged. NaN: unknown, because a value that is NaN or infinite
// counts in it, or because there is no matrix.
double error_of(context& c, const plan& p, std::span<const compare::tensor> tensors, uint64_t seed);

}  // namespace dr::calibrate
