#include <algorithm>
#include <numeric>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

enum { degree_, knots_, sign_ };  // wire fields

// The order: sign bit clear first, then by descending value, or all by descending magnitude; ties by position. In it, smooth
// curves come back.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const bool by_magnitude = o.fields[sign_] == 1;
  std::vector<uint32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (by_magnitude) return std::fabs(v[a]) > std::fabs(v[b]);
    return std::signbit(v[a]) != std::signbit(v[b]) ? std::signbit(v[b]) : v[a] > v[b];
  });
  if (!std::ranges::equal(order, o.told)) return "the order told is not the sorted one";

  std::vector<double> sorted(v.size());
  for (size_t i = 0; i < v.size(); ++i) sorted[i] = v[order[i]];
  for (size_t i = 0; by_magnitude && i < v.size(); ++i)
    if (std::signbit(got[i]) != std::signbit(sorted[i])) return "value " + std::to_string(i) + " changes its sign";
  const double error = squared_error(sorted, got);
  const uint64_t degree = o.fields[degree_];
  const bool chord = o.fields[knots_] == 1, jump = o.fields[knots_] == 2;
  // Of the values and, with jump, of coefficients in bf16.
  const double rounding = std::ldexp(1.0, -2 * format_of(o.in.dtype).mantissa_bits) + (jump ? 0x1p-16 : 0);
  const auto more_than = [&](double limit, const char* what) {
    return error <= limit + rounding
               ? std::string()
               : std::string(what) + ": squared relative error " + std::to_string(1e6 * error) + "e-6";
  };
  if (o.in.name.starts_with("polynomial of degree 5") && degree >= 5)
    return more_than(1e-12, "a polynomial is not reproduced");
  if (o.in.name.starts_with("a constant")) return more_than(1e-12, "a constant is not reproduced");
  if (o.in.name.starts_with("two values") && chord && degree >= 1) return more_than(0.4, "two values");
  // Of one or two pieces where the paper's rule says how many (tests/unit/figures.cpp has the others).
  if (o.in.name.starts_with("largest of laplace") && degree >= 5)
    return more_than(chord ? 1e-3 : 2e-4, "the tail of Laplace values");
  if (o.in.name.starts_with("selected and others") && degree >= 5 && (jump || chord))
    return more_than(1e-3, "values behind a jump");
  if (o.in.name.starts_with("largest of laplace") && chord && degree >= 1)
    return more_than(1e-2, "the tail of Laplace values, as lines");
  return "";
}

// What was selected, and one in eight that was not: there is a jump to these. (In f32, which is enough for that.)
std::vector<input> with_jumps(std::vector<input> all) {
  random_source random("fit_poly with jumps");
  for (const uint64_t count : {40, 900, 6000}) {
    std::vector<uint32_t> v(count);
    for (uint32_t& bits : v) {
      const double rest = random.laplace(), least = random.below(8) ? 5 : 0;
      bits = bits_of(DR_F32, rest < 0 ? rest - least : rest + least);
    }
    all.push_back({"selected and others", 36864, count, DR_F32, 1, bytes_of(v)});
  }
  return all;
}

}  // namespace

codec_case value_fit_poly() {
  return {DR_ROLE_VALUE,
          "fit_poly",
          {"fit_poly", "fit_poly(degree=0)", "fit_poly(degree=1)", "fit_poly(degree=9)", "fit_poly(sign=order)",
           "fit_poly(knots=chord)", "fit_poly(knots=chord,sign=order)", "fit_poly(degree=1,knots=chord,segments=8)",
           "fit_poly(degree=0,knots=chord,segments=64)", "fit_poly(knots=chord,segments=0)", "fit_poly(knots=jump)",
           "fit_poly(degree=9,knots=jump)", "fit_poly(degree=2,knots=jump,sign=order)",
           "fit_poly(degree=1,knots=chord,sign=order,segments=0)", "fit_poly(degree=9,knots=chord,segments=64)"},
          with_jumps(all_values("fit_poly", true, {1})),
          judge};
}

}  // namespace dr::cases
