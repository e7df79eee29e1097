// The time of a step's exchange on a link, from measured times and bytes. A model in closed form: ranks are alike and
// begin together, every link has the same rate each way and the same latency, and nothing overlaps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dr::compare {

struct link {
  double bits_per_second = 0, latency_ns = 0;
};

// "10Gb/s", "100Mbit/s,50us", "25e9" (bit/s), "1.25GB/s" (bytes). Throws std::invalid_argument.
link parse_link(std::string_view text);

// A plan on one rank: times in ns, the frame in bytes.
struct step_costs {
  double sparsify_ns = 0, encode_ns = 0, decode_ns = 0;
  double merge_ns = 0;  // of the frames of all ranks
  double frame_bytes = 0;
  double sum_growth = 1;  // frame of the ranks' sum / frame of one rank; `ranks` where no support meets another
  double dense_bytes = 0;
};

// The schedule of an `exchange=` stage.
struct schedule {
  enum { gather, owner, ring, hierarchy } kind = gather;
  uint32_t inner = 1;  // hierarchy: ranks of a host
};
schedule read_schedule(std::string_view stage);  // "exchange=owner(parts=4)"; "" is gather

// A ring all-reduce of so many bytes: 2 (n - 1) messages of bytes / n, one after the other. Additions are not counted.
double ring_ns(double bytes, uint32_t ranks, const link& l);

// A plan's exchange, by the formulas of model_help.
double step_ns(const step_costs& plan, const schedule& how, uint32_t ranks, const link& l);

// The speed of each rank's link, in bit/s, under which a gather is faster than a ring all-reduce of so many bytes, by the
// formula of model_help. 0: at no speed.
double pays_below(const step_costs& plan, double bytes, uint32_t ranks);

// For --help: the formulas.
extern const char* const model_help;

}  // namespace dr::compare
