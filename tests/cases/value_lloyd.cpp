#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Signs stay, magnitudes become some of those in the payload, in the order of the values, and none is worse
// than the mean of all.
std::string judge(const observation& o) {
  const number_format f = format_of(o.in.dtype);
  if (o.payload.size() > 1 + o.in.elements.size()) return "longer than the values";
  if (o.payload[0] == 0) return std::ranges::equal(o.decoded, o.in.elements) ? "" : "raw values change";
  const size_t count = (o.payload[0] >> 2 & 15) + 1;
  const uint32_t type = o.payload[0] & 64 ? o.in.dtype : uint32_t{DR_BF16};
  std::vector<double> table(count);
  for (size_t i = 0; i < count; ++i)
    table[i] = number_of(type, element(o.payload.subspan(1), format_of(type).bytes, i));
  if (!std::ranges::is_sorted(table)) return "the magnitudes do not ascend";
  const auto v = numbers(o.in.dtype, o.in.elements), got = numbers(o.in.dtype, o.decoded);
  std::vector<std::pair<double, double>> pairs;
  double mean = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    if (std::signbit(got[i]) != std::signbit(v[i])) return "value " + std::to_string(i) + " changes its sign";
    const double b = std::fabs(got[i]), rounding = std::ldexp(b, -f.mantissa_bits) + number_of(o.in.dtype, 1);
    const auto near = [&](double number) {
      return std::fabs(number - b) <= rounding || (b == number_of(o.in.dtype, f.largest()) && number > b);
    };
    if (std::ranges::none_of(table, near)) return "value " + std::to_string(i) + " is none of the levels";
    pairs.emplace_back(std::fabs(v[i]), b);
    mean += std::fabs(v[i]) / static_cast<double>(v.size());
  }
  std::ranges::sort(pairs);
  double error = 0, around = 0, norm = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i && pairs[i].second < pairs[i - 1].second) return "a larger magnitude has a lower level";
    error += std::pow(pairs[i].first - pairs[i].second, 2);
    around += std::pow(pairs[i].first - mean, 2);
    norm += std::pow(pairs[i].first, 2);
  }
  return error <= around * 1.001 + norm * 0x1p-15 + number_of(o.in.dtype, 1) ? "" : "one level would do better";
}

}  // namespace

codec_case value_lloyd() {
  std::vector<input> inputs = all_values("lloyd", true, {1, 3});
  random_source random("lloyd");
  inputs.push_back(values("laplace", DR_F32, 1, 40000, [&](uint64_t) { return 0.01 * random.laplace(); }));
  // What Huffman is for; enough for its larger table, and for a sample.
  for (const uint32_t dtype : {DR_F32, DR_F16})
    for (const uint64_t count : {3000, 9001, 70000})
      inputs.push_back(values("normal", dtype, 1, count, [&](uint64_t) {
        double sum = 0;
        for (int k = 0; k < 6; ++k) sum += random.unit() - 0.5;
        return 3 + sum;
      }));
  // What a price is for: a crowd, and a few that are far.
  for (const uint64_t count : {5000, 70000})
    inputs.push_back(values("a crowd and some", DR_F32, 1, count, [&](uint64_t) {
      return (random.below(2) ? 1 : -1) * (random.below(15) ? 0.7 + 0.6 * random.unit() : 4 + random.unit());
    }));
  inputs.push_back(values("ranges of 1e30", DR_F32, 1, 500,
                          [&](uint64_t i) { return (i % 9 ? 1e-15 : 1e15) * (1 + random.unit()); }));
  // Of so many one in eight is looked at: what the others have is counted where it is above, or found by the error.
  const auto hidden = [](uint64_t i) { return i % 512 >= 64; };
  inputs.push_back(values("others elsewhere", DR_F32, 1, 70000,
                          [&](uint64_t i) { return hidden(i) ? 1 + 0.1 * random.unit() : 100 + random.unit(); }));
  inputs.push_back(values("larger elsewhere", DR_F16, 1, 70000,
                          [&](uint64_t i) { return i % 7000 == 300 ? 60000 : 1 + random.unit(); }));
  inputs.push_back(values("three", DR_BF16, 1, 70000, [&](uint64_t i) { return i == 300 ? -10 : i % 2 ? 1 : 0.5; }));
  return {DR_ROLE_VALUE,
          "lloyd",
          {"lloyd", "lloyd(levels=2)", "lloyd(levels=3)", "lloyd(levels=7)", "lloyd(levels=16)", "lloyd(price=0.35)",
           "lloyd(levels=16,price=0.01)"},
          std::move(inputs),
          judge};
}

}  // namespace dr::cases
