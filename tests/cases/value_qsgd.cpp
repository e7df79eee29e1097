#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

enum { levels, bucket };  // wire fields

// Each value moves by less than norm / levels, but for its rounding; a norm is that of its bucket, or the largest number.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const number_format f = format_of(o.in.dtype);
  const double highest = number_of(o.in.dtype, f.largest()), smallest = number_of(o.in.dtype, 1);
  for (size_t begin = 0, b = 0; begin < v.size(); begin += o.fields[bucket], ++b) {
    const size_t end = std::min<size_t>(v.size(), begin + o.fields[bucket]);
    long double squares = 0;
    for (size_t i = begin; i < end; ++i) squares += static_cast<long double>(v[i]) * v[i];
    const double norm = std::min(highest, static_cast<double>(std::sqrt(squares)));
    const double sent = number_of(DR_F32, element(o.payload, 4, b));
    if (std::fabs(sent - norm) > 1e-7 * norm + 0x1p-149) return "bucket " + std::to_string(b) + " has another norm";
    for (size_t i = begin; i < end; ++i) {
      const double step = sent / static_cast<double>(o.fields[levels]),
                   rounding = std::ldexp(std::fabs(got[i]), -f.mantissa_bits) + smallest;
      // A norm above the largest number is that number: there, levels end below the value.
      if (std::fabs(got[i] - v[i]) > step * (1 + 1e-12) + rounding)
        return "value " + std::to_string(i) + " moves by more than a level";
      if (got[i] != 0 && std::signbit(got[i]) != std::signbit(v[i]))
        return "value " + std::to_string(i) + " changes its sign";
    }
  }
  return "";
}

}  // namespace

codec_case value_qsgd() {
  return {DR_ROLE_VALUE,
          "qsgd",
          {"qsgd", "qsgd(levels=63)", "qsgd(levels=1,bucket=7)", "qsgd(levels=32767,bucket=1048576)",
           "qsgd(levels=5,bucket=1)"},
          all_values("qsgd", true, {1, 3}),
          judge};
}

}  // namespace dr::cases
