// What a collective takes on a link: ring algorithms, in closed form, or as measured.
#pragma once

#include <cstdint>
#include <optional>

#include "link_text.hpp"
#include "profile.hpp"

namespace dr::predict {

struct network {
  uint32_t ranks = 2, ranks_per_host = 1;
  link wire;  // of a host, each way
  // Of the profile, where it has one: its base is what a collective costs beside its bytes, in place of a latency that
  // nobody stated; its slope counts only if the rate is not stated either.
  std::optional<measured_link> measured;
  bool stated = true;  // the rate

  // Ring all-reduce of so many bytes: 2 (n - 1) messages of bytes / n (Thakur et al. 2005). Additions are not counted.
  double allreduce_ns(double bytes) const;
  // Ring all-gather of so many bytes of each rank: n - 1 messages.
  double allgather_ns(double bytes) const;
  // The port of a rank in an exchange by `stage`. Where all ranks send to all, those of a host share its link, and what
  // they send to one another does not go over it. Of a ring, and of the first ranks of hosts, one rank uses it.
  // What a message costs beside its bytes is the machine's: it counts on a stated link, too.
  link port(const std::string& schedule) const;

  // What was measured counts beside a stated rate, too: what a collective costs beside its bytes.
  bool uses_measured() const { return measured && !(stated && wire.has_latency); }

  // Another link, on which bytes take another time; what was measured beside them stays.
  network with_rate(double bits_per_second) const;
  network with_ranks(uint32_t other) const;
};

double ring_allreduce_ns(double bytes, uint32_t ranks, const link& l);
double ring_allgather_ns(double bytes, uint32_t ranks, const link& l);

// The link of the profile that is nearest: of this transport, if it has one; measured among as many ranks, or nearly; of
// this rate, or nearly (0: any). nullptr: none.
const measured_link* closest_link(const profile& p, const char* transport, uint32_t ranks, double bits_per_second);

}  // namespace dr::predict
