#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "number.hpp"

namespace dr::compare {
namespace {

uint64_t common(std::span<const uint64_t> kept, std::span<const uint64_t> support) {
  uint64_t both = 0;
  for (auto a = kept.begin(), b = support.begin(); a != kept.end() && b != support.end();) {
    both += *a == *b;
    if (*a < *b)
      ++a;
    else if (*b < *a)
      ++b;
    else
      ++a, ++b;
  }
  return both;
}

// Equal bits do not differ, whatever they mean: an exactly transmitted NaN is no error.
double difference(dtype type, uint32_t a, uint32_t b) { return a == b ? 0 : value_of(type, a) - value_of(type, b); }

}  // namespace

distortion measure_distortion(const tensor& g, std::span<const uint64_t> kept, std::span<const std::byte> decoded,
                              std::span<const uint64_t> support) {
  double gg = 0, hh = 0, gh = 0, ss = 0, s_error = 0, g_error = 0, s_max = 0, error_max = 0;
  auto next = kept.begin();
  for (uint64_t i = 0; i < g.elements; ++i) {
    const uint32_t g_bits = bits_at(g.type, g.data, i), h_bits = bits_at(g.type, decoded, i);
    uint32_t s_bits = 0;
    if (next != kept.end() && *next == i) s_bits = g_bits, ++next;
    const double gi = value_of(g.type, g_bits), hi = value_of(g.type, h_bits), si = value_of(g.type, s_bits);
    const double es = difference(g.type, s_bits, h_bits), eg = difference(g.type, g_bits, h_bits);
    gg += gi * gi, hh += hi * hi, gh += gi * hi, ss += si * si;
    s_error += es * es, g_error += eg * eg;
    s_max = std::max(s_max, std::abs(si));
    error_max = std::max(error_max, std::abs(es));
  }
  // One root of the product: exactly 1 for equal tensors, and squares of f32 are far from a double's ends.
  const uint64_t both = common(kept, support);
  return {kept.size() - both,
          support.size() - both,
          quotient(static_cast<double>(both), static_cast<double>(kept.size())),
          quotient(std::sqrt(s_error), std::sqrt(ss)),
          std::isfinite(s_error) ? quotient(error_max, s_max) : undefined,  // max() does not see a NaN
          quotient(gh, std::sqrt(gg * hh)),
          quotient(g_error, gg),
          gg,
          ss};
}

double index_bound_bits(uint64_t d, uint64_t r) {
  if (r == 0 || r >= d) return 0;
  const double n = static_cast<double>(d), k = static_cast<double>(r);
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0) / k;
}

double quotient(double numerator, double denominator) {
  if (denominator == 0) return numerator == 0 ? 0 : undefined;
  return std::isfinite(numerator / denominator) ? numerator / denominator : undefined;
}

timing summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(samples.size() - 1);
    const size_t low = static_cast<size_t>(at), high = std::min(low + 1, samples.size() - 1);
    return samples[low] + (at - static_cast<double>(low)) * (samples[high] - samples[low]);
  };
  const double median = quantile(0.5);
  return {median, quotient(quantile(0.75) - quantile(0.25), median)};
}

}  // namespace dr::compare
