#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Zero or the scale with the value's sign; what reaches the scale is never zero, what is zero always. (Chances are
// judged in statistics.cpp.)
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const double scale = number_of(DR_F32, element(o.payload, 4, 0));
  double most = 0;
  for (const double x : v) most = std::max(most, std::fabs(x));
  if (scale > most || (scale == 0) != (most == 0)) return "another scale";
  for (size_t i = 0; i < v.size(); ++i) {
    const bool sent = got[i] != 0;
    if (sent ? got[i] != std::copysign(scale, v[i]) : std::signbit(got[i]))
      return "value " + std::to_string(i) + " is none of three";
    if (v[i] == 0 ? sent : std::fabs(v[i]) >= scale && !sent)
      return "value " + std::to_string(i) + " is not what chance allows";
  }
  return o.payload.size() == 4 + (v.size() + 4) / 5 ? "" : "not a byte for five";
}

}  // namespace

codec_case value_ternary() {
  return {DR_ROLE_VALUE,
          "ternary",
          {"ternary", "ternary(clip=0)", "ternary(clip=1)", "ternary(clip=0.001)"},
          all_values("ternary", true, {1, 3}),
          judge};
}

}  // namespace dr::cases
