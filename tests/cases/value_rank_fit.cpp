#include <algorithm>
#include <set>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

enum { bits_, degree_ };  // wire fields

// Signs stay; a magnitude becomes the nearest decoded one, of which there are at most 2^bits; and none is worse in all
// than with as many levels uniform in the logarithm.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  std::set<double> used;
  for (size_t i = 0; i < v.size(); ++i) {
    if (std::signbit(v[i]) != std::signbit(got[i])) return "value " + std::to_string(i) + " changes its sign";
    used.insert(std::fabs(got[i]));
  }
  const uint64_t levels = uint64_t{1} << o.fields[bits_];
  if (used.size() > levels) return std::to_string(used.size()) + " magnitudes of " + std::to_string(levels);
  double lowest = HUGE_VAL, highest = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    const double m = std::fabs(v[i]), off = std::fabs(m - std::fabs(got[i]));
    auto above = used.lower_bound(m);
    if (above != used.end() && std::fabs(*above - m) < off) return "value " + std::to_string(i) + " has a nearer level";
    if (above != used.begin() && std::fabs(*--above - m) < off)
      return "value " + std::to_string(i) + " has a nearer level";
    lowest = std::min(lowest, m);
    highest = std::max(highest, m);
  }
  // Of the type, and of logarithms up to 160 in f32.
  const double error = squared_error(v, got),
               rounding = std::ldexp(1.0, -format_of(o.in.dtype).mantissa_bits) + 0x1p-16;
  const auto more_than = [&](double limit, const char* what) {
    return error <= std::pow(std::sqrt(limit) + rounding, 2)
               ? std::string()
               : std::string(what) + ": squared relative error " + std::to_string(1e6 * error) + "e-6";
  };
  // Subnormals have fewer digits than the rounding above grants.
  if (highest > std::ldexp(1.0, format_of(o.in.dtype).exponent_min + 24) && o.fields[degree_] >= 1) {
    lowest = std::max(lowest, std::ldexp(highest, -24));
    const double step = std::log2(highest / lowest) / static_cast<double>(levels);
    std::vector<double> uniform;
    for (const double x : v) {
      const double m = std::max(std::fabs(x), lowest);
      double best = HUGE_VAL;
      for (uint64_t i = 0; i < levels; ++i) {
        const double level = lowest * std::exp2(step * (static_cast<double>(i) + 0.5));
        if (std::fabs(level - m) < std::fabs(best - m)) best = level;
      }
      uniform.push_back(std::copysign(best, x));
    }
    // Magnitudes were counted in bins, 2048 of the whole range at most.
    const double bin = std::log(highest / lowest) / 2048;
    const auto wrong =
        more_than(std::pow(std::sqrt(squared_error(v, uniform)) + bin, 2), "worse than uniform in the logarithm");
    if (!wrong.empty()) return wrong;
  }
  if (o.in.name.starts_with("a constant")) return more_than(1e-10, "a constant is not reproduced");
  if (o.in.name.starts_with("two values") && o.fields[degree_] >= 1) return more_than(1e-10, "two values");
  if (o.in.name.starts_with("largest of laplace") && o.fields[degree_] >= 3) {
    // Four times less for each bit, which holds when levels are many; of few values, one may need a level for itself.
    return more_than((o.in.count < 1000 ? 8e-3 : 5e-3) * std::pow(0.28, static_cast<double>(o.fields[bits_]) - 2),
                     "the tail of Laplace values");
  }
  return "";
}

}  // namespace

codec_case value_rank_fit() {
  return {DR_ROLE_VALUE,
          "rank_fit",
          {"rank_fit", "rank_fit(bits=1)", "rank_fit(bits=2)", "rank_fit(bits=3,degree=1)", "rank_fit(degree=0)",
           "rank_fit(bits=5)", "rank_fit(bits=6,degree=7)", "rank_fit(bits=8,degree=3)"},
          all_values("rank_fit", true, {1, 3}),
          judge};
}

}  // namespace dr::cases
