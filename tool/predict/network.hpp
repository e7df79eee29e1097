// The time of a collective on a link: ring algorithms, in closed form, or as measured.
#pragma once

#include <cstdint>
#include <optional>

#include "link_text.hpp"
#include "profile.hpp"

namespace dr::predict {

struct network {
  uint32_t ranks = 2, ranks_per_host = 1;
  link wire;  // of a host, in either direction
  // The profile's link, if any. Its base is the fixed cost of a collective and replaces a latency that was not stated; its
  // slope counts only if the rate was not stated either.
  std::optional<measured_link> measured;
  bool stated = true;  // the rate

  // Ring all-reduce: 2 (n - 1) messages of bytes / n (Thakur et al. 2005). Additions are not counted.
  double allreduce_ns(double bytes) const;
  // Ring all-gather of `bytes` per rank: n - 1 messages.
  double allgather_ns(double bytes) const;
  // The port of a rank in an exchange by `stage`. If all ranks send to all, a host's ranks share its link, and their own
  // messages do not use it. In a ring, and between first ranks of hosts, one rank uses it. The fixed cost of a message is
  // the machine's: it counts on a stated link, too.
  link port(const std::string& schedule) const;

  // The measured fixed cost of a collective also counts with a stated rate.
  bool uses_measured() const { return measured && !(stated && wire.has_latency); }

  // Another rate; measured fixed costs stay.
  network with_rate(double bits_per_second) const;
  network with_ranks(uint32_t other) const;
};

double ring_allreduce_ns(double bytes, uint32_t ranks, const link& l);
double ring_allgather_ns(double bytes, uint32_t ranks, const link& l);

// The profile's nearest link: of this transport, if it has one, then by number of ranks, then by rate (0: any). nullptr:
// none.
const measured_link* closest_link(const profile& p, const char* transport, uint32_t ranks, double bits_per_second);

}  // namespace dr::predict
