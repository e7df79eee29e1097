#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

enum { means, level };  // wire fields

// Each value is one of two numbers, by its sign; these are the level, the mean magnitude or the means of both sides.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const number_format f = format_of(o.in.dtype);
  const double highest = number_of(o.in.dtype, f.largest());
  long double sums[2] = {0, 0};
  size_t counts[2] = {0, 0};
  for (const double x : v) {
    sums[x >= 0] += std::fabs(x);
    ++counts[x >= 0];
  }
  for (const bool other : {false, true}) {
    long double wanted = number_of(DR_F32, static_cast<uint32_t>(o.fields[level]));
    if (o.fields[means] == 1) wanted = (sums[0] + sums[1]) / static_cast<long double>(v.size());
    if (o.fields[means] == 2) wanted = counts[other] ? sums[other] / static_cast<long double>(counts[other]) : 0;
    const double number = std::min(highest, static_cast<double>(wanted));
    const double rounding = std::ldexp(number, -f.mantissa_bits) + number_of(o.in.dtype, 1);
    for (size_t i = 0; i < v.size(); ++i)
      if ((v[i] >= 0) == other && std::fabs(got[i] - (other ? number : -number)) > rounding)
        return "value " + std::to_string(i) + " is not what its sign stands for";
  }
  return o.payload.size() == 4 * o.fields[means] + (v.size() + 7) / 8 ? "" : "not a bit a value";
}

}  // namespace

codec_case value_sign() {
  return {DR_ROLE_VALUE,
          "sign",
          {"sign", "sign(scale=mean)", "sign(scale=means)", "sign(scale=level,level=0.01)"},
          all_values("sign", true, {1, 3}),
          judge};
}

}  // namespace dr::cases
