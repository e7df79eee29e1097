// Links as texts.
#pragma once

#include <string_view>

namespace dr::predict {

// A rank's link, in either direction.
struct link {
  double bits_per_second = 0, latency_ns = 0;
  bool has_latency = false;  // stated in the text
  double message_ns = 0;     // a message's cost for its sender and receiver, who do not compute meanwhile
  // A shaped link has a token bucket of burst_bytes, which pass at burst_bits_per_second; it fills at bits_per_second and
  // starts full.
  double burst_bytes = 0, burst_bits_per_second = 0;
};

// "10Gb/s", "100Mbit/s,50us", "1.25GB/s" (bytes); at most 1e18 bit/s and ns. Throws std::invalid_argument.
link parse_link(std::string_view text);

// "122ms", "1.5 s", "40us": in ns, at most 1e18. Throws std::invalid_argument.
double parse_time(std::string_view text);

}  // namespace dr::predict
