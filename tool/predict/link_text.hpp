// A link as a person writes it.
#pragma once

#include <string_view>

namespace dr::predict {

// Of a rank, each way.
struct link {
  double bits_per_second = 0, latency_ns = 0;
  bool has_latency = false;  // somebody stated it
  double message_ns = 0;     // that a message takes of its sender and its receiver, who compute nothing meanwhile
  // A shaped link is a bucket of so many bytes, which pass at another rate; it fills at bits_per_second. Full at first.
  double burst_bytes = 0, burst_bits_per_second = 0;
};

// "10Gb/s", "100Mbit/s,50us", "1.25GB/s" (bytes); at most 1e18 bit/s and ns. Throws std::invalid_argument.
link parse_link(std::string_view text);

// "122ms", "1.5 s", "40us": in ns, at most 1e18. Throws std::invalid_argument.
double parse_time(std::string_view text);

}  // namespace dr::predict
