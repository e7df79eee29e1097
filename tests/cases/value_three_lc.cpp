#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const double scale = number_of(DR_F32, element(o.payload, 4, 0));
  const double highest = number_of(o.in.dtype, format_of(o.in.dtype).largest());
  const double rounding = std::ldexp(scale, -format_of(o.in.dtype).mantissa_bits) + number_of(o.in.dtype, 1);
  double most = 0;
  bool any = false;
  for (size_t i = 0; i < v.size(); ++i) {
    most = std::max(most, std::fabs(v[i]));
    const bool kept = v[i] != 0 && std::fabs(v[i]) >= scale / 2;
    any |= kept;
    if (kept ? std::fabs(got[i] - std::copysign(std::min(scale, highest), v[i])) > rounding
             : got[i] != 0 || std::signbit(got[i]))
      return "value " + std::to_string(i) + " is not the nearest of three";
  }
  if (any != (most > 0)) return "the largest became zero";
  if (scale < std::min(most, highest) || scale > most * 1.99 * (1 + 0x1p-23) + 0x1p-149) return "another scale";
  return o.payload.size() <= 4 + (v.size() + 4) / 5 ? "" : "more than a byte for five";
}

}  // namespace

codec_case value_three_lc() {
  return {DR_ROLE_VALUE,
          "three_lc",
          {"three_lc", "three_lc(sparsity=1.5)", "three_lc(sparsity=1.99)"},
          all_values("three_lc", true, {1, 3}),
          judge};
}

}  // namespace dr::cases
