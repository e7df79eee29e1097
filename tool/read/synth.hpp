// Synthetic gradients, so that a comparison can be repeated anywhere without a file.
#pragma once

#include "inputs.hpp"

namespace dr::compare {

inline constexpr std::string_view synth_prefix = "synth:";

// `text` is synth: and any of these, separated by commas; the default is the first value.
//   d=1000000                            elements of the dense tensor, 1 to 2^40; also as 1M or 1e6
//   density=1                            share of nonzeros in (0, 1]: max(1, round(density * d)) of them, exactly
//   support=uniform|clustered|powerlaw   positions of the nonzeros
//   values=laplace|gauss|student3        scale, standard deviation, and factor of Student's t with 3 degrees: 1e-3
//   seed=1                               any 64-bit number
//
// Supports: uniform draws without replacement. clustered: the density of a block of 4096 is lognormal with
// sigma = 1. powerlaw selects an element with a probability proportional to 1 / its rank, and scatters ranks over the
// tensor. In both, a probability above 1 is cut to 1, and the others increase.
// Values have random signs. With density < 1 they are Top-r's selection: the tail of the distribution beyond the
// magnitude that is exceeded with probability `density`.
//
// A text yields the same bytes on every machine: draws are splitmix64 of (seed, position), logarithms and
// exponentials are ours, and no std:: distribution is used. This requires -ffp-contract=off on machines with fused
// multiply-add. It needs no memory beside the tensor. Throws input_error.
tensor make_synth(std::string_view text);

}  // namespace dr::compare
