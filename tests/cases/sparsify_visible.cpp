#include <bit>

#include "cases/sparsifier_case.hpp"

namespace dr::cases {
namespace {

// x in a type of 16 bits, by its quantum: the least exponent, bits of mantissa, and where infinity begins.
struct narrow_type {
  int exponent_min, mantissa_bits;
  double infinite;
};
constexpr narrow_type bf16{-126, 7, 0x1.ffp127}, f16{-14, 10, 65520};

double rounded(double x, const narrow_type& t) {
  if (x == 0 || std::fabs(x) >= t.infinite) return x == 0 ? 0 : std::copysign(HUGE_VAL, x);
  const double quantum = std::ldexp(1, std::max(std::ilogb(x), t.exponent_min) - t.mantissa_bits);
  return std::nearbyint(x / quantum) * quantum;
}

positions keeps(const kept_input& in, const narrow_type& type, float rate) {
  positions out;
  for (uint64_t i = 0; i < in.bits.size(); ++i) {
    const auto v = static_cast<float>(number_of(in.dtype, in.bits[i])),
               w = static_cast<float>(number_of(in.dtype, bits_of(in.dtype, weight_at(i))));
    const float step = rate * v, moved = w - step;
    if (!std::isfinite(v) || rounded(static_cast<double>(w), type) != rounded(static_cast<double>(moved), type))
      out.push_back(i);
  }
  return out;
}

}  // namespace

sparsifier_case sparsify_visible() {
  sparsifier_case all{"visible",
                      {{"visible", [](const kept_input& in) { return keeps(in, bf16, 1); }},
                       {"visible(rate=0.7)", [](const kept_input& in) { return keeps(in, bf16, 0.7f); }},
                       {"visible(type=f16)", [](const kept_input& in) { return keeps(in, f16, 1); }}},
                      true};
  for (sparsifier_plan& plan : all.plans) plan.weighs = true;
  return all;
}

}  // namespace dr::cases
