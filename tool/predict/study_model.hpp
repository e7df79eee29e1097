// The formulas of "On the Utility of Gradient Compression in Distributed Training Systems" (Agarwal et al., MLSys 2022),
// as a reference beside the model of this library. Times in ns.
#pragma once

#include <cstdint>
#include <vector>

#include "network.hpp"
#include "training_model.hpp"

namespace dr::predict {

// Synchronous SGD with overlap: max(slowdown · backward, (k - 1) T(bucket)) + T(last bucket), with ring all-reduces.
double study_sync_ns(double bytes, double bucket_bytes, double backward_ns, double slowdown, uint32_t ranks,
                     const link& l);

// Compressed, nothing overlaps: backward + encode and decode + all-reduces of `bytes` in all, `messages` of them.
double study_allreduce_ns(double bytes, uint32_t messages, double backward_ns, double coding_ns, uint32_t ranks,
                          const link& l);
// The same by all-gathers.
double study_allgather_ns(double bytes, uint32_t messages, double backward_ns, double coding_ns, uint32_t ranks,
                          const link& l);

// PowerSGD (Vogels et al., NeurIPS 2019) at rank r: a matrix of n × m is sent as P, n × r, and Q, m × r; other
// tensors, and those that gain nothing, are sent unchanged. Tensors of unknown shape count as square ones.
struct powersgd_size {
  double bytes = 0;      // of P, Q and the rest
  double flops = 0;      // of the two products, the product that restores, and Gram-Schmidt
  bool guessed = false;  // a shape was unknown
};
powersgd_size powersgd_of(const training& t, uint32_t rank);

// Of one tensor: elements in the first factor and in the second; second = 0: the tensor is unchanged in the first.
struct factor_size {
  double first = 0, second = 0;
  bool guessed = false;
};
factor_size factors_of(const tensor_spec& t, uint32_t rank);

}  // namespace dr::predict
