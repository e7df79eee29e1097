#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// The tree's numbers, ascending: of each decade as many parts as its fraction has, their middles.
std::vector<double> tree() {
  std::vector<double> all{0};
  for (int k = 6; k >= 0; --k) {
    const int parts = 1 << (6 - k);
    for (int j = 0; j < parts; ++j) all.push_back(std::pow(10.0, -k) * (0.1 + 0.9 * (j + 0.5) / parts));
  }
  return all;
}

// Signs stay. A magnitude becomes the number of the tree, times the largest magnitude, that is nearest.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const auto all = tree();
  double scale = 0;
  for (const double x : v) scale = std::max(scale, std::fabs(x));
  if (o.payload.size() != 4 + v.size()) return "not a byte a value";
  if (number_of(DR_F32, element(o.payload, 4, 0)) != scale) return "another scale";
  const number_format f = format_of(o.in.dtype);
  for (size_t i = 0; i < v.size(); ++i) {
    const double a = std::fabs(v[i]);
    double nearest = HUGE_VAL;
    for (const double t : all) nearest = std::min(nearest, std::fabs(t * scale - a));
    // Of the decoded number, of the quotient, which decides between two, and of this test's powers.
    const double rounding = std::ldexp(std::fabs(got[i]), -f.mantissa_bits) + number_of(o.in.dtype, 1) + 1e-6 * a;
    if (std::signbit(got[i]) != std::signbit(v[i])) return "value " + std::to_string(i) + " changes its sign";
    if (std::fabs(std::fabs(got[i]) - a) > nearest + rounding)
      return "value " + std::to_string(i) + " is not the nearest";
  }
  return "";
}

}  // namespace

codec_case value_dynamic_tree() {
  std::vector<input> inputs = all_values("dynamic_tree", true, {1, 3});
  random_source random("dynamic_tree");
  inputs.push_back(values("of eight decades", DR_F32, 1, 3000,
                          [&](uint64_t i) { return (i % 2 ? 1 : -1) * std::pow(10.0, -8 * random.unit()); }));
  return {DR_ROLE_VALUE, "dynamic_tree", {"dynamic_tree"}, std::move(inputs), judge};
}

}  // namespace dr::cases
