// Gradients made on the spot, so that a comparison can be repeated anywhere without a file.
#pragma once

#include "inputs.hpp"

namespace dr::compare {

inline constexpr std::string_view synth_prefix = "synth:";

// `text` is synth: and any of these, separated by commas; each has the default that stands first.
//   d=1000000                            elements of the dense tensor, 1 to 2^40; also as 1M or 1e6
//   density=1                            share of nonzeros in (0, 1]: max(1, round(density * d)) of them, exactly
//   support=uniform|clustered|powerlaw   where they are
//   values=laplace|gauss|student3        scale, standard deviation, and factor of Student's t with 3 degrees: 1e-3
//   seed=1                               any 64-bit number
//
// Supports: uniform draws without replacement. clustered gives blocks of 4096 a density that is lognormal with
// sigma = 1. powerlaw keeps an element with a probability proportional to 1 / its rank, and ranks are strewn over the
// tensor. Where that would pass 1, in either, it is 1 and the others have more.
// Values have random signs. With density < 1 they are what Top-r would keep: the tail of the distribution beyond the
// magnitude that is exceeded with probability `density`.
//
// The same text gives the same bytes on every machine: draws are splitmix64 of (seed, position), logarithms and
// exponentials are ours, and no std:: distribution is used. That needs -ffp-contract=off where the machine has fused
// multiply-add. Beside the tensor it takes no memory. Throws input_error.
tensor make_synth(std::string_view text);

}  // namespace dr::compare
