#include <algorithm>
#include <cstring>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Values that share a code are neighbours of one sign; what comes back lies among them and is their mean.
std::string judge(const observation& o) {
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  const size_t buckets = o.payload[0] + size_t{1}, codes = 1 + 4 * buckets;
  if (o.payload.size() != codes + v.size()) return "not as long as buckets and codes";
  struct group {
    std::vector<double> members;
    double decoded;
  };
  std::vector<group> groups(buckets);
  for (size_t i = 0; i < v.size(); ++i) {
    group& g = groups.at(o.payload[codes + i]);
    g.members.push_back(v[i]);
    g.decoded = got[i];
    if (std::signbit(got[i]) != std::signbit(v[i])) return "value " + std::to_string(i) + " changes its sign";
  }
  double before = -HUGE_VAL;
  size_t largest = 0;
  for (const group& g : groups) {
    if (g.members.empty()) return "a bucket without values";
    const auto [low, high] = std::ranges::minmax(g.members);
    if (low < before || (low == before && low != 0)) return "buckets overlap";
    before = high;
    if (g.decoded < low || g.decoded > high) return "a value leaves its bucket";
    long double sum = 0;
    for (const double m : g.members) sum += m;
    const auto mean = static_cast<double>(sum / static_cast<long double>(g.members.size()));
    const double rounding =
        std::ldexp(std::fabs(mean), -format_of(o.in.dtype).mantissa_bits) + number_of(o.in.dtype, 1);
    if (std::fabs(g.decoded - mean) > rounding) return "not the mean of its bucket";
    largest = std::max(largest, g.members.size());
  }
  // Laplace values are all different (but where the type is coarse): buckets are even.
  if (o.in.name.starts_with("laplace, f32 5000") && buckets == 256 && largest > o.in.width * 5000 / 256 + 2)
    return "a bucket of " + std::to_string(largest);
  return "";
}

}  // namespace

codec_case value_sketch() {
  return {DR_ROLE_VALUE,
          "sketch",
          {"sketch", "sketch(buckets=2)", "sketch(buckets=16)", "sketch(buckets=255)"},
          all_values("sketch", true, {1, 3}),
          judge};
}

}  // namespace dr::cases
