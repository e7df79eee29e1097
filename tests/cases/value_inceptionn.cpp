#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// By exponent, of an error of 2^-10: values lose what is below the last bit of their class.
std::string judge_by_exponent(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const size_t bytes = format_of(o.in.dtype).bytes;
  size_t size = (v.size() + 3) / 4;
  for (size_t i = 0; i < v.size(); ++i) {
    const double a = std::fabs(v[i]), sign = std::signbit(v[i]) ? -1 : 1;
    const int length = a >= (bytes == 2 ? 0x1p-5 : 1) ? 3 : a < 0x1p-10 ? 0 : a < 0x1p-5 ? 1 : 2;
    const double want = length == 3 ? v[i]
                        : length == 0
                            ? 0
                            : sign * std::floor(std::ldexp(a, 8 * length - 1)) / std::ldexp(1.0, 8 * length - 1);
    if (got[i] != want) return "value " + std::to_string(i) + " is not what its class sends";
    size += length == 3 ? bytes : static_cast<size_t>(length);
  }
  return o.payload.size() == size ? "" : "another size than its classes have";
}

// No value moves by more than the error; those of at least 1 stay. A payload has the bits that their magnitudes take.
std::string judge(const observation& o) {
  if (o.fields[0] == 127) return judge_by_exponent(o);
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const size_t bytes = format_of(o.in.dtype).bytes;
  const double unit = std::ldexp(1.0, -static_cast<int>(o.fields[0]));
  size_t size = (v.size() + 3) / 4;
  for (size_t i = 0; i < v.size(); ++i) {
    const double a = std::fabs(v[i]);
    const std::string value = "value " + std::to_string(i);
    if (std::fabs(got[i] - v[i]) > unit / 2) return value + " moves by more than the error";
    if (a >= 1 && got[i] != v[i]) return value + " is not below 1, and moves";
    if (got[i] != 0 && std::signbit(got[i]) != std::signbit(v[i])) return value + " changes its sign";
    size += a >= 1 ? bytes : a <= unit / 2 ? 0 : a < 127.5 * unit ? 1 : a < 32767.5 * unit ? 2 : bytes;
  }
  return o.payload.size() == size ? "" : "another size than its classes have";
}

}  // namespace

codec_case value_inceptionn() {
  std::vector<input> inputs = all_values("inceptionn", true, {1, 3});
  random_source random("inceptionn");
  // All classes by chance, in more blocks than one; and the middles between two codes.
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    for (const uint64_t count : {1023, 1024, 1025, 5000})
      inputs.push_back(values("of four decades", dtype, 1, count,
                              [&](uint64_t i) { return (i % 2 ? 1 : -1) * 3 * std::pow(10.0, -5 * random.unit()); }));
  inputs.push_back(
      values("middles", DR_F32, 1, 1100, [&](uint64_t i) { return (static_cast<double>(i) - 0.5) / 512; }));
  return {DR_ROLE_VALUE,
          "inceptionn",
          {"inceptionn", "inceptionn(error=0.5)", "inceptionn(error=0.0001)", "inceptionn(error=2e-10)",
           "inceptionn(error=1e-38)", "inceptionn(classes=exponent)"},
          std::move(inputs),
          judge};
}

}  // namespace dr::cases
