#include <algorithm>
#include <numeric>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// The order is fit_poly's: sign bit clear first, then by descending value, or all by descending magnitude; ties by position.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const bool by_magnitude = o.fields[0] == 1;
  std::vector<uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (by_magnitude) return std::fabs(v[a]) > std::fabs(v[b]);
    return std::signbit(v[a]) != std::signbit(v[b]) ? std::signbit(v[b]) : v[a] > v[b];
  });
  if (!std::ranges::equal(order, o.told)) return "the order told is not the sorted one";

  std::vector<double> sorted(v.size()), means(v.size());
  for (size_t i = 0; i < v.size(); ++i) sorted[i] = v[order[i]];
  for (const bool negative : {false, true}) {
    double sum = 0, count = 0;
    const auto ours = [&](double x) { return by_magnitude || std::signbit(x) == negative; };
    for (const double x : sorted) {
      sum += ours(x) ? (by_magnitude ? std::fabs(x) : x) : 0;
      count += ours(x);
    }
    for (size_t i = 0; i < sorted.size(); ++i)
      if (ours(sorted[i])) means[i] = by_magnitude ? std::copysign(sum / count, sorted[i]) : sum / count;
  }
  for (size_t i = 0; i < sorted.size(); ++i)
    if (got[i] != 0 && std::signbit(got[i]) != std::signbit(sorted[i]))
      return "value " + std::to_string(i) + " changes its sign";

  const number_format f = format_of(o.in.dtype);
  const double error = squared_error(sorted, got), rounding = std::ldexp(1.0, -f.mantissa_bits);
  const auto more_than = [&](double limit, const char* what) {
    return error <= std::pow(std::sqrt(limit) + rounding, 2)
               ? std::string()
               : std::string(what) + ": squared relative error " + std::to_string(1e6 * error) + "e-6";
  };
  // Subnormals have fewer digits than the rounding above grants.
  const bool subnormal =
      std::fabs(sorted.empty() ? 0 : *std::ranges::max_element(sorted, {}, [](double x) { return std::fabs(x); })) <
      std::ldexp(1.0, f.exponent_min + 12);
  if (!subnormal)
    if (const auto wrong = more_than(1.001 * squared_error(sorted, means), "worse than the mean of each sign");
        !wrong.empty())
      return wrong;
  if (o.in.name.starts_with("a constant")) return more_than(1e-12, "a constant is not reproduced");
  // An extreme value far from the others is what two exponentials miss. (Of 23593: tests/unit/figures.cpp.)
  if (o.in.name.starts_with("largest of laplace"))
    return more_than(o.in.count < 1000 ? 3e-3 : 1e-3, "the tail of Laplace values");
  return "";
}

}  // namespace

codec_case value_fit_dexp() {
  return {DR_ROLE_VALUE, "fit_dexp", {"fit_dexp", "fit_dexp(sign=order)"}, all_values("fit_dexp", true, {1}), judge};
}

}  // namespace dr::cases
