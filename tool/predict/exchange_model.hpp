// The cost of an exchange: the library's own program, run dry on the loopback under its virtual clock, with the costs of
// the profile per step. So the program that a rank runs is also its model.
#pragma once

#include <stdexcept>

#include "link_text.hpp"
#include "profile.hpp"
#include "timeline.hpp"

namespace dr::predict {

// Costs of a plan as functions of the number of elements (of a range of the tensors). Times in ns.
struct exchange_work {
  curve encode;
  curve first, merge;  // of the first frame, and of every further one that is added
  curve add;           // a dense tensor added to a sum
  curve frame;         // bytes
  double sum_growth = 1;
  double dense_bytes = 4;  // per element
};

// Unsupported: too many ranks for a schedule in which ranks differ.
struct unsupported_model : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct exchange_time {
  double total_ns = 0, bytes = 0;      // maximum over ranks, sent
  double encode_ns = 0, merge_ns = 0;  // computing of rank 0: encode includes sums, merge too
  std::vector<interval> timeline;
};

// stage: "exchange=owner(parts=4)"; "" is gather. Throws std::runtime_error, and unsupported_model.
exchange_time model_exchange(const std::string& stage, double elements, const exchange_work& work, uint32_t ranks,
                             const link& port, bool traced = false);

// Limit for schedules that require every rank in the model (messages are ranks²), and limit of a loopback.
inline constexpr uint32_t max_unlike_ranks = 256, max_ranks = 4096;
// Longer steps (31 years) are unsupported: the exchange times out, and nothing overflows.
inline constexpr double max_ns = 1e18;

}  // namespace dr::predict
