#include <cmath>
#include <numbers>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// "Normally distributed bf16 takes 0.66 of its bytes, f32 0.83." What is uniform is not coded: never longer than raw by
// more than a byte a plane.
std::string judge(const observation& o) {
  const auto raw = static_cast<double>(o.in.elements.size()), size = static_cast<double>(o.payload.size());
  const auto bytes = static_cast<double>(o.in.elements.size() / (o.in.count * o.in.width));
  if (o.in.elements.size() <= size_t{1} << 18 && size > raw + bytes)
    return "a payload of " + std::to_string(o.payload.size()) + " bytes for values of " +
           std::to_string(o.in.elements.size());
  const double share = o.in.dtype == DR_F32 ? 0.832 : o.in.dtype == DR_BF16 ? 0.664 : 0.85;
  if (o.in.name == "normal" && size > share * raw + 100)
    return "normal values take " + std::to_string(size / raw) + " of their bytes";
  return "";
}

}  // namespace

codec_case value_planes() {
  random_source random("planes");
  auto inputs = all_values("planes", false, {1, 3});
  for (input& in : all_words("planes", {1, 3})) inputs.push_back(std::move(in));
  const auto normal = [&](uint64_t) {
    return 0.02 * std::sqrt(-2 * std::log(1 - random.unit())) * std::cos(2 * std::numbers::pi * random.unit());
  };
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16}) {
    // One string of 16 states, and four.
    for (const uint64_t count : {9001, 70001}) inputs.push_back(values("normal", dtype, 1, count, normal));
    // Above 32 exponents, NaN among them; and zeros.
    inputs.push_back(values("many exponents", dtype, 1, 9001, [&](uint64_t i) {
      return i % 3 ? normal(i) : std::ldexp(normal(i), static_cast<int>(i % 61) - 40);
    }));
    inputs.push_back(values("half zeros", dtype, 1, 40001, [&](uint64_t i) { return i % 2 ? normal(i) : 0; }));
  }
  // Two blocks, the other one of a word or of four strings; and three.
  const auto two = [&](uint64_t) { return random.below(8) ? 1 : 2; };
  for (const uint64_t count : {(1 << 18) + 1, (1 << 18) + 70000, (1 << 19) + 70000})
    inputs.push_back(values("two values", DR_BF16, 1, count, two));
  return {DR_ROLE_VALUE, "planes", {"planes"}, inputs, judge};
}

}  // namespace dr::cases
