#include <algorithm>
#include <numeric>

#include "cases/samples.hpp"

namespace dr::cases {
namespace {

// The order: sign bit clear first, then by descending value, ties by position. In it, smooth curves come back.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  std::vector<uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::signbit(v[a]) != std::signbit(v[b]) ? std::signbit(v[b]) : v[a] > v[b];
  });
  if (!std::ranges::equal(order, o.told)) return "the order told is not the sorted one";

  std::vector<double> sorted(v.size());
  for (size_t i = 0; i < v.size(); ++i) sorted[i] = v[order[i]];
  const double error = squared_error(sorted, got);
  const uint64_t degree = o.fields[0];
  const double rounding = std::ldexp(1.0, -2 * format_of(o.in.dtype).mantissa_bits);
  const auto more_than = [&](double limit, const char* what) {
    return error <= limit + rounding
               ? std::string()
               : std::string(what) + ": squared relative error " + std::to_string(1e6 * error) + "e-6";
  };
  if (o.in.name.starts_with("polynomial of degree 5") && degree >= 5)
    return more_than(1e-12, "a polynomial is not reproduced");
  if (o.in.name.starts_with("a constant")) return more_than(1e-12, "a constant is not reproduced");
  if (o.in.name.starts_with("largest of laplace") && degree >= 5) return more_than(2e-4, "the tail of Laplace values");
  return "";
}

}  // namespace

codec_case value_fit_poly() {
  return {DR_ROLE_VALUE,
          "fit_poly",
          {"fit_poly", "fit_poly(degree=0)", "fit_poly(degree=1)", "fit_poly(degree=9)"},
          all_values("fit_poly", true, {1}),
          judge};
}

}  // namespace dr::cases
