#include "peer_sets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tool/compare/selected.hpp"
#include "tool/read/subjects.hpp"

namespace dr::bench {
namespace {

constexpr uint64_t run_length = 65536;

struct draws {
  uint64_t state;
  uint64_t next() {  // splitmix64 (Steele, Lea, Flood 2014)
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  uint64_t below(uint64_t n) {
    __extension__ using wide = unsigned __int128;
    return static_cast<uint64_t>((wide{next()} * n) >> 64);
  }
};

double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

double entropy(double p) { return p <= 0 || p >= 1 ? 0 : -p * std::log2(p) - (1 - p) * std::log2(1 - p); }

std::string percent(double x) { return fmt::format("{:g} %", 100 * x); }

// The values of g at the positions.
value_set values_at(const compare::tensor& g, std::span<const uint64_t> positions) {
  value_set v{"", g.elements, {}};
  for (const uint64_t i : positions) {
    float x;
    std::memcpy(&x, g.data.data() + 4 * i, 4);
    v.values.push_back(x);
  }
  return v;
}

}  // namespace

index_set uniform_set(uint64_t d, uint64_t r, uint64_t seed) {
  index_set set{fmt::format("uniform, d = {:g}, r = {:g}", static_cast<double>(d), static_cast<double>(r)), d, {}};
  draws random{seed};
  set.indices.reserve(r);
  if (r * 100 > d) {  // Knuth, 3.4.2, algorithm S
    for (uint64_t i = 0; set.indices.size() < r; ++i)
      if (random.below(d - i) < r - set.indices.size()) set.indices.push_back(static_cast<uint32_t>(i));
    return set;
  }
  while (set.indices.size() < r) {
    while (set.indices.size() < r) set.indices.push_back(static_cast<uint32_t>(random.below(d)));
    std::sort(set.indices.begin(), set.indices.end());
    set.indices.erase(std::unique(set.indices.begin(), set.indices.end()), set.indices.end());
  }
  return set;
}

index_set clustered_set(uint64_t d, double density, double sigma, uint64_t seed) {
  index_set set{
      fmt::format("clustered, lognormal sigma = {:g}, d = {:g}, {}", sigma, static_cast<double>(d), percent(density)),
      d,
      {}};
  draws random{seed};
  std::vector<double> p((d + run_length - 1) / run_length);
  for (size_t i = 0; i < p.size(); ++i)
    p[i] = std::exp(sigma * normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(p.size())));
  const double scale = density * static_cast<double>(p.size()) / std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x = std::min(1.0, x * scale);
  for (size_t i = p.size(); i > 1; --i) std::swap(p[i - 1], p[random.below(i)]);
  double bits = 0;
  for (uint64_t i = 0; i < d; ++i) {
    bits += i % run_length == 0 ? entropy(p[i / run_length]) * static_cast<double>(std::min(run_length, d - i)) : 0;
    if (random.unit() < p[i / run_length]) set.indices.push_back(static_cast<uint32_t>(i));
  }
  set.local_entropy = bits / static_cast<double>(set.indices.size());
  return set;
}

captured_set captured(const std::string& datasets, const std::string& name, double ratio) {
  compare::console quiet;
  const compare::tensor g = compare::read_subjects({.inputs = {datasets + "/gradients/" + name + ".npz"}}, quiet).at(0);
  const std::string sparsify = ratio > 0 ? fmt::format("sparsify=topr(ratio={})", ratio) : "sparsify=none";
  context c;
  const auto kept = compare::selected_by(c, sparsify, g);
  captured_set both{{name + (ratio > 0 ? ", Top-r " + percent(ratio) : ", nonzeros"), g.elements, {}},
                    values_at(g, kept)};
  for (const uint64_t i : kept) both.set.indices.push_back(static_cast<uint32_t>(i));
  both.values.name = both.set.name;
  return both;
}

value_set synth_values(const std::string& law, uint64_t d, double density, uint64_t seed) {
  compare::console quiet;
  const auto g = compare::read_subjects(
                     {{fmt::format("synth:d={},values={},density={},seed={}", d, law, density, seed)}, {}}, quiet)
                     .at(0);
  context c;
  const auto kept = compare::selected_by(c, "sparsify=none", g);
  value_set v = values_at(g, kept);
  v.name = fmt::format("{}, Top-r {} of d = {:g}", law, percent(density), static_cast<double>(d));
  return v;
}

}  // namespace dr::bench
