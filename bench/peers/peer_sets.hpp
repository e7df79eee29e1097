// Index sets and values that codecs and peers are timed on. The same seeds give the same sets on every machine with the same C library
// (exp and erfc decide densities).
#pragma once

#include "peer.hpp"

namespace dr::bench {

// r of d positions, each subset equally likely.
index_set uniform_set(uint64_t d, uint64_t r, uint64_t seed);

// Runs of 65,536 positions whose densities are lognormal: exp(sigma * z) scaled to a mean of `density`, cut at 1, where z takes the
// quantiles (i + 1/2) / runs of the normal distribution in random order, so that no draw of few runs decides the entropy. Within a
// run each position is a draw of its own. 65,536 is the power of two at which plain Golomb blocks cost what
// the prototype of design/SPLIT_GOLOMB.md measured: at sigma 1 7.65 bits with blocks of 512 and 7.93 with 4096 (there 7.65 and 7.90)
// over a local entropy of 7.38 (7.34), at sigma 2 5.87 and 6.60 over 5.43 (5.76 and 6.34 over 5.15); runs of 32,768 give 7.73 and 8.02.
index_set clustered_set(uint64_t d, double density, double sigma, uint64_t seed);

// The Top-r of a bundled gradient, all its tensors joined (ratio 0: the nonzeros).
struct captured_set {
  index_set set;
  value_set values;
};
captured_set captured(const std::string& datasets, const std::string& name, double ratio);

// Values as drawn by `synth:` of the tool: those that Top-r selects of d elements.
value_set synth_values(const std::string& law, uint64_t d, double density, uint64_t seed);

}  // namespace dr::bench
