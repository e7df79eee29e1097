#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace dr::predict {
namespace {

double time_of(double bytes, const link& l) { return 8e9 * bytes / l.bits_per_second; }

}  // namespace

double ring_allreduce_ns(double bytes, uint32_t ranks, const link& l) {
  const double n = ranks;
  return 2 * (n - 1) * (l.latency_ns + time_of(bytes / n, l));
}

double ring_allgather_ns(double bytes, uint32_t ranks, const link& l) {
  return (ranks - 1.0) * (l.latency_ns + time_of(bytes, l));
}

double network::allreduce_ns(double bytes) const {
  if (ranks < 2) return 0;
  if (!measured || !measured->allreduce || (stated && wire.has_latency)) return ring_allreduce_ns(bytes, ranks, wire);
  const curve& c = *measured->allreduce;
  const double n = ranks, m = measured->ranks, hops = (n - 1) / (m - 1);
  if (stated) return std::max(c.floor, c.base) * hops + 2 * (n - 1) / n * time_of(bytes, wire);
  if (ranks == measured->ranks) return c(bytes);
  return std::max(c.floor, c.base) * hops + c.slope * bytes * ((n - 1) / n) / ((m - 1) / m);
}

double network::allgather_ns(double bytes) const {
  if (ranks < 2) return 0;
  if (!measured || !measured->allgather || (stated && wire.has_latency)) return ring_allgather_ns(bytes, ranks, wire);
  const curve& c = *measured->allgather;
  const double hops = (ranks - 1.0) / (measured->ranks - 1.0);
  if (stated) return std::max(c.floor, c.base) * hops + (ranks - 1.0) * time_of(bytes, wire);
  if (ranks == measured->ranks) return c(bytes);
  return hops * (std::max(c.floor, c.base) + c.slope * bytes);
}

link network::port(const std::string& schedule) const {
  link port = wire;
  if (measured && measured->hop_ns > 0) {
    port.message_ns = std::min(measured->message_ns, measured->hop_ns);
    if (!port.has_latency) port.latency_ns = measured->hop_ns - port.message_ns;
  } else if (measured && !port.has_latency) {
    port.latency_ns = measured->latency_ns;
  }
  if (measured && !stated)
    port.burst_bytes = measured->burst_bytes, port.burst_bits_per_second = measured->burst_bits_per_second;
  const double n = ranks, m = std::min<double>(std::max(ranks_per_host, 1u), n);
  const bool one = schedule == "ring" || schedule == "hierarchy";
  // As measured, on the same hosts.
  if (!one && !stated && measured && measured->port_bits_per_second > 0 && ranks == measured->ranks) {
    port.bits_per_second = measured->port_bits_per_second;
    return port;
  }
  if (!one && m > 1 && n > m) port.bits_per_second = wire.bits_per_second / m * (n - 1) / (n - m);
  return port;
}

network network::with_rate(double bits_per_second) const {
  network other = *this;
  const double slower = wire.bits_per_second / bits_per_second;
  other.wire.bits_per_second = bits_per_second;
  if (stated || !measured) return other;
  // As measured, except for the time of bytes.
  measured_link& l = *other.measured;
  l.bits_per_second /= slower, l.port_bits_per_second /= slower;
  for (std::optional<curve>* const bandwidth : {&l.allreduce, &l.allgather})
    if (*bandwidth) *bandwidth = (*bandwidth)->with_slope(slower);
  return other;
}

network network::with_ranks(uint32_t n) const {
  network other = *this;
  other.ranks = n;
  return other;
}

const measured_link* closest_link(const profile& p, const char* transport, uint32_t ranks, double bits_per_second) {
  const auto distance = [](double a, double b) { return std::abs(std::log(a / b)); };
  const auto rank = [&](const measured_link& l) {
    return std::tuple(l.transport != transport, distance(l.ranks, ranks),
                      bits_per_second > 0 ? distance(l.bits_per_second, bits_per_second) : 0);
  };
  const auto best = std::ranges::min_element(p.links, {}, rank);
  return best == p.links.end() ? nullptr : &*best;
}

}  // namespace dr::predict
