// What an exchange takes: the library's own program of it, run dry on the loopback under its virtual clock, where each
// step costs what the profile says. So the program that a rank runs is also its model.
#pragma once

#include <stdexcept>

#include "link_text.hpp"
#include "profile.hpp"
#include "timeline.hpp"

namespace dr::predict {

// Costs of a plan as functions of elements: of a range, which may be a part of the tensors. Times in ns.
struct exchange_work {
  curve encode;
  curve first, merge;  // of a frame that is written, and of each that is added to it
  curve add;           // a dense tensor added to a sum
  curve frame;         // bytes
  double sum_growth = 1;
  double dense_bytes = 4;  // an element
};

// The library cannot model it: too many ranks for a schedule in which they are not alike.
struct unsupported_model : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct exchange_time {
  double total_ns = 0, bytes = 0;      // sent by the rank that sends most
  double encode_ns = 0, merge_ns = 0;  // computing of rank 0: encode also of sums, merge with sums
  std::vector<interval> timeline;
};

// stage: "exchange=owner(parts=4)"; "" is gather. Throws std::runtime_error, and unsupported_model.
exchange_time model_exchange(const std::string& stage, double elements, const exchange_work& work, uint32_t ranks,
                             const link& port, bool traced = false);

// Most ranks of which each has to be modelled by itself: messages are ranks². Most of a loopback.
inline constexpr uint32_t most_unlike = 256, most_ranks = 4096;
// Longer steps are unsupported: 31 years. The exchange gives up, and nothing overflows.
inline constexpr double most_ns = 1e18;

}  // namespace dr::predict
