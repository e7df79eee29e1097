#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Signs stay. A magnitude becomes one of the two powers of two around it, below the smallest it or 0; a power stays.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const double largest = number_of(o.in.dtype, format_of(o.in.dtype).largest());
  double most = 0;
  for (const double x : v) most = std::max(most, std::fabs(x));
  if (o.payload.size() != 1 + v.size()) return "not a byte a value";
  const int highest = most > 0 ? std::max(104, std::ilogb(most) + 128) : 104;
  if (o.payload[0] != highest) return "another highest power";
  const double smallest = std::ldexp(1.0, highest - 253);
  for (size_t i = 0; i < v.size(); ++i) {
    const double a = std::fabs(v[i]), b = std::fabs(got[i]);
    const double below = a < smallest ? 0 : std::ldexp(1.0, std::ilogb(a)),
                 above = a < smallest ? smallest : std::min(2 * below, largest);
    if (std::signbit(got[i]) != std::signbit(v[i])) return "value " + std::to_string(i) + " changes its sign";
    if (b != below && (a == below || b != above))
      return "value " + std::to_string(i) + " is not one of the two around it";
  }
  return "";
}

}  // namespace

codec_case value_natural() {
  std::vector<input> inputs = all_values("natural", true, {1, 3});
  random_source random("natural");
  // More octaves than there are codes, and all powers of two.
  inputs.push_back(values("of 250 octaves", DR_F32, 1, 3000, [&](uint64_t) {
    return std::ldexp(1 + random.unit(), static_cast<int>(random.below(250)) - 125) * (random.below(2) ? 1 : -1);
  }));
  inputs.push_back(
      values("powers", DR_F32, 1, 277, [&](uint64_t i) { return std::ldexp(1.0, static_cast<int>(i) - 149); }));
  inputs.push_back(
      values("few powers", DR_BF16, 1, 100, [&](uint64_t i) { return std::ldexp(1.0, static_cast<int>(i) - 133); }));
  return {DR_ROLE_VALUE, "natural", {"natural", "natural(rounding=nearest)"}, std::move(inputs), judge};
}

}  // namespace dr::cases
