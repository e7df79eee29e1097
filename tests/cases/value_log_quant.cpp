#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Signs stay. A magnitude between low and high is multiplied by at most half a level's ratio; a smaller one becomes at most the
// lowest level's.
std::string judge(const observation& o) {
  const number_format f = format_of(o.in.dtype);
  if (o.payload.size() > 1 + o.in.elements.size()) return "longer than the values";
  if (o.payload[0] == 0) return std::ranges::equal(o.decoded, o.in.elements) ? "" : "raw values change";
  const double low = number_of(DR_F32, element(o.payload.subspan(1), 4, 0)),
               high = number_of(DR_F32, element(o.payload.subspan(5), 4, 0));
  const int levels = 1 << (o.payload[0] >> 3);
  const bool lowest = o.payload[0] & 4;
  const double ratio = low > 0 ? std::pow(high / low, 1.0 / levels) : 1;
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  for (size_t i = 0; i < v.size(); ++i) {
    if (std::signbit(got[i]) != std::signbit(v[i])) return "value " + std::to_string(i) + " changes its sign";
    const double a = std::fabs(v[i]), b = std::fabs(got[i]);
    const double rounding =  // of the number, and of the bound
        std::ldexp(b, -f.mantissa_bits) + number_of(o.in.dtype, 1) * (1 + std::sqrt(ratio)) + 1e-6 * b;
    const bool near =
        b <= a * std::sqrt(ratio) * (1 + 1e-5) + rounding && b >= a / std::sqrt(ratio) * (1 - 1e-5) - rounding;
    const double edge = low * ratio * (1 + 1e-6);
    if (!near && !(lowest && a <= edge && b <= edge + rounding))
      return "value " + std::to_string(i) + " moves by more than half a level";
  }
  return "";
}

}  // namespace

codec_case value_log_quant() {
  std::vector<input> inputs = all_values("log_quant", true, {1, 3});
  random_source random("log_quant");
  inputs.push_back(values("laplace", DR_F32, 1, 40000, [&](uint64_t) { return 0.01 * random.laplace(); }));
  // What Huffman is for: most magnitudes at the upper levels; enough for its larger table, and for a sample.
  for (const uint32_t dtype : {DR_F32, DR_BF16})
    for (const uint64_t count : {3000, 9001, 70000})
      inputs.push_back(values("cubes", dtype, 1, count, [&](uint64_t i) {
        const double u = random.unit();
        return (i % 2 ? 1 : -1) * (1 - u * u * u);
      }));
  inputs.push_back(values("ranges of 1e30", DR_F32, 1, 500,
                          [&](uint64_t i) { return (i % 9 ? 1e-15 : 1e15) * (1 + random.unit()); }));
  return {DR_ROLE_VALUE,
          "log_quant",
          {"log_quant", "log_quant(bits=1)", "log_quant(bits=3,range=2)", "log_quant(bits=6)",
           "log_quant(bits=5,range=64)"},
          std::move(inputs),
          judge};
}

}  // namespace dr::cases
