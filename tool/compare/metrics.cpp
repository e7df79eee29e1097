#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tool/read/number.hpp"

namespace dr::compare {
namespace {

uint64_t common(std::span<const uint64_t> selected, std::span<const uint64_t> support) {
  uint64_t both = 0;
  for (auto a = selected.begin(), b = support.begin(); a != selected.end() && b != support.end();) {
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

// Equal bits have no difference: a NaN that was transmitted exactly is not an error.
double difference(dtype type, uint32_t a, uint32_t b) { return a == b ? 0 : value_of(type, a) - value_of(type, b); }

}  // namespace

void distortion_sum::add(const tensor& g, std::span<const uint64_t> selected, std::span<const std::byte> decoded,
                         std::span<const uint64_t> support) {
  auto next = selected.begin(), arrived = support.begin();
  for (uint64_t i = 0; i < g.elements; ++i) {
    const uint32_t g_bits = bits_at(g.type, g.data, i), h_bits = bits_at(g.type, decoded, i);
    uint32_t s_bits = 0;
    if (next != selected.end() && *next == i) s_bits = g_bits, ++next;
    const double gi = value_of(g.type, g_bits), hi = value_of(g.type, h_bits), si = value_of(g.type, s_bits);
    const double es = difference(g.type, s_bits, h_bits), eg = difference(g.type, g_bits, h_bits);
    gg_ += gi * gi, hh_ += hi * hi, gh_ += gi * hi, ss_ += si * si;
    s_error_ += es * es, g_error_ += eg * eg;
    s_max_ = std::max(s_max_, std::abs(si));
    error_max_ = std::max(error_max_, std::abs(es));
    if (arrived != support.end() && *arrived == i) arrived_ += gi * gi, ++arrived;
  }
  selected_ += selected.size();
  support_ += support.size();
  both_ += common(selected, support);
}

distortion distortion_sum::result() const {
  // One root of the product: exactly 1 for equal tensors, and squares of f32 neither overflow nor underflow a double.
  return {selected_ - both_,
          support_ - both_,
          selected_ ? quotient(static_cast<double>(both_), static_cast<double>(selected_)) : 1,
          gg_ == 0 ? 1 : quotient(arrived_, gg_),
          quotient(std::sqrt(s_error_), std::sqrt(ss_)),
          std::isfinite(s_error_) ? quotient(error_max_, s_max_) : undefined,  // max() ignores NaN
          quotient(gh_, std::sqrt(gg_ * hh_)),
          quotient(g_error_, gg_),
          gg_,
          ss_};
}

distortion measure_distortion(const tensor& g, std::span<const uint64_t> selected, std::span<const std::byte> decoded,
                              std::span<const uint64_t> support) {
  distortion_sum sum;
  sum.add(g, selected, decoded, support);
  return sum.result();
}

void running_sum::add(dtype type, double gamma, std::span<const std::byte> x, std::span<const std::byte> y,
                      uint64_t first) {
  const uint64_t elements = x.size() / size_of(type);
  if (sum_.size() < first + elements) sum_.resize(first + elements);
  for (uint64_t i = 0; i < elements; ++i)
    sum_[first + i] +=
        gamma * value_of(type, bits_at(type, x, i)) - (y.empty() ? 0 : value_of(type, bits_at(type, y, i)));
}

double running_sum::norm() const {
  double squares = 0;
  for (const double x : sum_) squares += x * x;
  return std::sqrt(squares);
}

double index_bound_bits(uint64_t d, uint64_t r) {
  if (r == 0 || r >= d) return 0;
  const double n = static_cast<double>(d), k = static_cast<double>(r);
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0) / k;
}

double quotient(double numerator, double denominator) {
  if (denominator == 0) return numerator == 0 ? 0 : undefined;
  // A share of infinity is undefined.
  return std::isfinite(denominator) && std::isfinite(numerator / denominator) ? numerator / denominator : undefined;
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
