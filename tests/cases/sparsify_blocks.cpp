#include "cases/sparsifier_case.hpp"

namespace dr::cases {
namespace {

struct block {
  uint64_t first, n;
  float energy;
};

// A sum of squares by halves, each operation rounded to f32.
float energy_of(const kept_input& in, uint64_t first, uint64_t n, uint64_t size) {
  std::vector<float> q(size, 0.0f);
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t bits = in.bits[first + i], sign = format_of(in.dtype).sign(),
                   infinity = format_of(in.dtype).infinity();
    const uint32_t magnitude = bits & (sign - 1);
    const float x = magnitude > infinity    ? std::numeric_limits<float>::quiet_NaN()
                    : magnitude == infinity ? std::numeric_limits<float>::infinity()
                                            : static_cast<float>(number_of(in.dtype, magnitude));
    q[i] = x * x;
  }
  for (uint64_t half = size / 2; half > 0; half /= 2)
    for (uint64_t i = 0; i < half; ++i) q[i] = q[i] + q[i + half];
  return q[0];
}

// Blocks are of segments: each begins with its first element.
std::vector<block> blocks_of(const kept_input& in, uint64_t size) {
  std::vector<block> out;
  const uint64_t d = in.bits.size(), segment = in.segment ? in.segment : std::max<uint64_t>(d, 1);
  for (uint64_t begin = 0; begin < d; begin += segment)
    for (uint64_t first = begin, end = std::min(d, begin + segment); first < end; first += size) {
      const uint64_t n = std::min(size, end - first);
      out.push_back({first, n, energy_of(in, first, n, size)});
    }
  return out;
}

bool ranks_above(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

positions best_blocks(const kept_input& in, uint64_t size, double wanted) {
  std::vector<block> blocks = blocks_of(in, size);
  const auto all = static_cast<double>((in.bits.size() + size - 1) / size);
  if (wanted < all) {
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const block& a, const block& b) { return ranks_above(a.energy, b.energy); });
    blocks.resize(std::min(blocks.size(), static_cast<size_t>(std::max(1.0, wanted))));
  }
  positions out;
  for (const block& b : blocks)
    for (uint64_t i = 0; i < b.n && b.energy != 0; ++i) out.push_back(b.first + i);
  std::sort(out.begin(), out.end());
  return out;
}

positions share(const kept_input& in, uint64_t size, double ratio) {
  return best_blocks(in, size,
                     std::floor(ratio * static_cast<double>(in.bits.size()) / static_cast<double>(size) + 1e-9));
}

// ---- auto ----------------------------------------------------------------------------------------------------

double log2_ways(double n, double k) {
  return k * (std::log2(n) - std::log2(k)) + (k < n ? (n - k) * (std::log2(n) - std::log2(n - k)) : 0);
}

uint64_t worth(uint64_t d, uint64_t r, double value_bits, uint64_t size) {
  if (size == 1) return r;
  const uint64_t blocks = (d + size - 1) / size;
  const double most = log2_ways(static_cast<double>(d), static_cast<double>(r)) + value_bits * static_cast<double>(r);
  uint64_t fits = 1, above = blocks + 1;
  while (above - fits > 1) {
    const uint64_t i = fits + (above - fits) / 2;
    const double bits = log2_ways(static_cast<double>(blocks), static_cast<double>(i)) +
                        value_bits * static_cast<double>(size) * static_cast<double>(i);
    (bits <= most ? fits : above) = i;
  }
  return fits;
}

// Of the sample the values, each 32 padded with zeros, as a tensor of its own.
kept_input sampled(const kept_input& in) {
  const std::vector<block> all = blocks_of(in, 32);
  const uint64_t n =
      all.size() <= 512 ? all.size() : std::min<uint64_t>(1024, std::max<uint64_t>(512, all.size() / 16));
  kept_input out{in.dtype, {}, n * 32, {}, 0};
  for (uint64_t k = 0; k < n; ++k) {
    const uint64_t each = all.size() / n;
    const block& b = all[n == all.size() ? k : k * each + drawn(k, all.size()) % each];
    for (uint64_t i = 0; i < 32; ++i) out.bits.push_back(i < b.n ? in.bits[b.first + i] : 0);
  }
  return out;
}

positions automatic(const kept_input& in, uint64_t r, double value_bits) {
  const uint64_t d = in.bits.size();
  if (d == 0) return {};
  const kept_input sample = sampled(in);
  const uint64_t stretches = blocks_of(in, 32).size(), n = sample.bits.size() / 32;
  uint64_t best = 1;
  double most = 0;
  for (uint64_t size = 1; size <= 32; size *= 2) {
    std::vector<float> energies;
    for (const block& b : blocks_of(sample, size)) energies.push_back(b.energy);
    std::sort(energies.begin(), energies.end(), ranks_above);
    const uint64_t m = std::max<uint64_t>(1, worth(d, r, value_bits, size) * n / stretches);
    double sum = 0;
    for (uint64_t i = 0; i < std::min<uint64_t>(m, energies.size()); ++i)
      if (std::isfinite(energies[i])) sum += static_cast<double>(energies[i]);
    // (Sums in another order: equal ones are equal but for rounding.)
    if (sum > most * (1 + 1e-12)) {
      most = sum;
      best = size;
    }
  }
  return best_blocks(in, best, static_cast<double>(worth(d, r, value_bits, best)));
}

}  // namespace

sparsifier_case sparsify_blocks() {
  sparsifier_case all{
      "blocks",
      {{"blocks(ratio=0.01,block=1)", [](const kept_input& in) { return share(in, 1, 0.01); }},
       {"blocks(ratio=0.05,block=2)", [](const kept_input& in) { return share(in, 2, 0.05); }},
       {"blocks(ratio=0.01,block=4)", [](const kept_input& in) { return share(in, 4, 0.01); }},
       {"blocks(ratio=0.1,block=8)", [](const kept_input& in) { return share(in, 8, 0.1); }},
       {"blocks(ratio=0.6,block=16)", [](const kept_input& in) { return share(in, 16, 0.6); }},
       {"blocks(ratio=1,block=32)", [](const kept_input& in) { return share(in, 32, 1); }},
       {"blocks(count=70,block=32)", [](const kept_input& in) { return best_blocks(in, 32, 3); }},
       {"blocks(ratio=0.02)", [](const kept_input& in) { return automatic(in, share_of(0.02, in.universe), 2); }},
       {"blocks(count=50,block=auto,value_bits=8)",
        [](const kept_input& in) { return automatic(in, std::min<uint64_t>(50, in.universe), 8); }}},
      true};
  // (tests/kernels cuts tensors within blocks.)
  for (sparsifier_plan& plan : all.plans) plan.whole = 32;
  return all;
}

}  // namespace dr::cases
