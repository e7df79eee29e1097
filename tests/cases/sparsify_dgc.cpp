#include "cases/sparsifier_case.hpp"

namespace dr::cases {
namespace {

// The smallest magnitude of at least x, or infinity's.
uint32_t magnitude_of(uint32_t dtype, double x) {
  uint32_t b = 1, infinity = format_of(dtype).infinity();
  for (uint32_t step = infinity / 2 + 1; step > 0; step /= 2)
    while (b + step <= infinity && number_of(dtype, b + step - 1) < x) b += step;
  return b;
}

}  // namespace

positions kept_by_dgc(const kept_input& in, uint64_t key, uint64_t target, double share, int corrections) {
  const uint64_t n = in.bits.size(),
                 m = std::min(n, std::max<uint64_t>(
                                     1024, static_cast<uint64_t>(std::floor(share * static_cast<double>(n) + 1e-9))));
  const positions exact = largest(in, target);
  if (m == n || target >= n) return exact;
  std::vector<uint32_t> sample;
  for (uint64_t i = 0; i < m; ++i) {
    const uint64_t first = n * i / m, end = n * (i + 1) / m;
    sample.push_back(in.magnitude(first + drawn(key, i) % (end - first)));
  }
  std::sort(sample.rbegin(), sample.rend());
  uint32_t low = std::max(1u, sample[std::max<uint64_t>(1, target * m / n) - 1]);
  positions out = reaching(in, low);
  if (corrections == 0) return out;
  for (int round = 0; round < corrections && out.size() < target - 3 * target / 10 && low > 1; ++round) {
    low = magnitude_of(in.dtype, 0.7 * number_of(in.dtype, std::min(low, format_of(in.dtype).infinity() - 1)));
    out = reaching(in, low);
  }
  return out.size() > target + 3 * target / 10 ? exact : out;
}

sparsifier_case sparsify_dgc() {
  return {"dgc",
          {{"dgc(ratio=0.01)",
            [](const kept_input& in) {
              return kept_by_dgc(in, combined(in.shared, 4), share_of(0.01, in.universe), 0.01);
            }},
           {"dgc(ratio=0.02,corrections=0)",
            [](const kept_input& in) {
              return kept_by_dgc(in, combined(in.shared, 4), share_of(0.02, in.universe), 0.01, 0);
            }},
           {"dgc(ratio=0.01,corrections=1)",
            [](const kept_input& in) {
              return kept_by_dgc(in, combined(in.shared, 4), share_of(0.01, in.universe), 0.01, 1);
            }},
           {"dgc(ratio=0.2,sample=0.3)", [](const kept_input& in) {
              return kept_by_dgc(in, combined(in.shared, 4), share_of(0.2, in.universe), 0.3);
            }}}};
}

}  // namespace dr::cases
