#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Signs stay; a magnitude moves by less than a step (its base is the mean place in a step) but for roundings, or all become one;
// nothing is longer than the values and a byte.
std::string judge(const observation& o) {
  const number_format f = format_of(o.in.dtype);
  if (o.payload.size() > 1 + o.in.elements.size()) return "longer than the values";
  if (o.payload[0] == 0) return std::ranges::equal(o.decoded, o.in.elements) ? "" : "raw values change";
  const double base = number_of(DR_F32, element(o.payload.subspan(1), 4, 0)),
               step = number_of(DR_F32, element(o.payload.subspan(5), 4, 0));
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  double least = std::fabs(v[0]), most = least;
  for (const double x : v) {
    least = std::min(least, std::fabs(x));
    most = std::max(most, std::fabs(x));
  }
  // One magnitude for all, where that does better.
  if (step == 0 ? base < least || base > most : base < least * (1 - 1e-6) || base > (least + step) * (1 + 1e-6))
    return "the base is not in the first step";
  for (size_t i = 0; i < v.size(); ++i) {
    if (std::signbit(got[i]) != std::signbit(v[i])) return "value " + std::to_string(i) + " changes its sign";
    const double rounding =
        std::ldexp(std::fabs(v[i]), -f.mantissa_bits) + number_of(o.in.dtype, 1) + 1e-6 * std::fabs(v[i]);
    if (std::fabs(std::fabs(got[i]) - (step == 0 ? base : std::fabs(v[i]))) > step * (1 + 1e-6) + rounding)
      return "value " + std::to_string(i) + " moves by more than a step";
  }
  return "";
}

}  // namespace

codec_case value_uniform_quant() {
  std::vector<input> inputs = all_values("uniform_quant", true, {1, 3});
  random_source random("uniform_quant");
  const auto laplace = [&](uint64_t) { return 0.01 * random.laplace(); };
  // Several blocks; and one whose outlier has no level, so that its block alone is sent as it is.
  inputs.push_back(values("laplace", DR_F32, 1, 40000, laplace));
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    inputs.push_back(
        values("an outlier", dtype, 1, 9000, [&](uint64_t i) { return i == 5000 ? 60000 : 0.5 + random.unit(); }));
  inputs.push_back(values("ranges of 1e30", DR_F32, 1, 500,
                          [&](uint64_t i) { return (i % 9 ? 1e-15 : 1e15) * (1 + random.unit()); }));
  return {DR_ROLE_VALUE,
          "uniform_quant",
          {"uniform_quant", "uniform_quant(error=0.3)", "uniform_quant(error=1e-4)", "uniform_quant(error=1e-5)",
           "uniform_quant(bits=1)", "uniform_quant(bits=5)", "uniform_quant(bits=16)"},
          std::move(inputs),
          judge};
}

}  // namespace dr::cases
