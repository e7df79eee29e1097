// The time of a step's exchange on a link, from measured times and bytes, by the model of tool/predict: the plan's
// exchange, run dry under a virtual clock. All ranks are equal and start together.
#pragma once

#include <cstdint>
#include <string>

#include "tool/predict/link_text.hpp"

namespace dr::compare {

using predict::link;
using predict::parse_link;

// A plan on one rank: times in ns, the frame in bytes. A part of the elements costs its share of each.
struct step_costs {
  double elements = 0;
  double encode_ns = 0;  // with sparsify
  double merge_ns = 0;   // of the frames of all ranks
  double frame_bytes = 0;
  double sum_growth = 1;  // frame of the ranks' sum / frame of one rank; `ranks` if supports are disjoint
  double dense_bytes = 0;
};

// What each rank sends to all others before any writes: the agreement of a gather.
inline constexpr double agreement_bytes = 256;

// A ring all-reduce: 2 (n - 1) messages of bytes / n, one after another. Additions are not counted.
double ring_ns(double bytes, uint32_t ranks, const link& l);

// By the plan's stage "exchange=owner(parts=4)"; "" is gather. NaN: more ranks than the model supports for this schedule.
double step_ns(const step_costs& plan, const std::string& stage, uint32_t ranks, const link& l);

// The speed of a rank's link, in bit/s, below which the exchange is faster than a ring all-reduce of `bytes` bytes,
// without latency. 0: at no speed. NaN: as of step_ns.
double pays_below(const step_costs& plan, const std::string& stage, double bytes, uint32_t ranks);

// For --help.
extern const char* const model_help;

}  // namespace dr::compare
