#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

enum { type };  // the wire field

// The nearest of a format's numbers, ties to even, saturating. nearbyint: in the default rounding mode.
double nearest(uint32_t dtype, double v) {
  if (v == 0) return v;
  const number_format f = format_of(dtype);
  const double highest = number_of(dtype, f.largest());
  const double unit = std::ldexp(1.0, std::max(std::ilogb(v), f.exponent_min) - f.mantissa_bits);
  return std::clamp(std::nearbyint(v / unit) * unit, -highest, highest);
}

std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const uint32_t half = o.fields[type] ? DR_BF16 : DR_F16;
  if (o.payload.size() != 2 * v.size()) return "not two bytes a value";
  for (size_t i = 0; i < v.size(); ++i) {
    const double expected = nearest(o.in.dtype, nearest(half, v[i]));
    if (got[i] != expected || std::signbit(got[i]) != std::signbit(expected))
      return "value " + std::to_string(i) + " is not the nearest";
  }
  return "";
}

}  // namespace

codec_case value_half() {
  return {DR_ROLE_VALUE, "half", {"half", "half(type=bf16)"}, all_values("half", true, {1, 3}), judge};
}

}  // namespace dr::cases
