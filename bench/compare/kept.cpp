#include "kept.hpp"

#include <algorithm>
#include <numeric>

#include "number.hpp"

namespace dr::compare {
namespace {

template <class Keep>
std::vector<uint64_t> positions_where(const tensor& g, Keep&& keep) {
  std::vector<uint64_t> positions;
  for (uint64_t i = 0; i < g.elements; ++i)
    if (keep(bits_at(g.type, g.data, i))) positions.push_back(i);
  return positions;
}

// The largest magnitudes, ties by lower index, never zeros of either sign. Ordered by bits, so NaN is above infinity.
std::vector<uint64_t> largest(const tensor& g, uint64_t count) {
  auto positions = positions_where(g, [&](uint32_t bits) { return magnitude_of(g.type, bits) != 0; });
  if (count >= positions.size()) return positions;
  const auto key = [&](uint64_t i) { return magnitude_of(g.type, bits_at(g.type, g.data, i)); };
  std::nth_element(positions.begin(), positions.begin() + static_cast<ptrdiff_t>(count), positions.end(),
                   [&](uint64_t a, uint64_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
  positions.resize(count);
  std::sort(positions.begin(), positions.end());
  return positions;
}

uint64_t topr_count(const plan_part& topr, uint64_t d) {
  const double count = number_argument(topr, DR_ROLE_SPARSIFY, "count");
  const double ratio = number_argument(topr, DR_ROLE_SPARSIFY, "ratio");
  const double wanted = count > 0 ? count : std::floor(ratio * static_cast<double>(d) + 1e-9);
  return wanted >= static_cast<double>(d) ? d : std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
}

// FORMAT.md, Random numbers.
constexpr uint64_t golden = 0x9e3779b97f4a7c15;
uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
uint64_t combine(uint64_t key, uint64_t part) { return mix64((key ^ part) + golden); }
uint64_t draw(uint64_t key, uint64_t i) { return mix64(key + (i + 1) * golden); }
uint64_t sparsify_key(uint64_t seed, uint64_t sparsifier) {
  return combine(combine(combine(combine(0, seed), 0), 0), sparsifier);
}

// Positions as they are drawn, until there are `count`; of more than half of them the others.
std::vector<uint64_t> by_chance(uint64_t key, uint64_t d, uint64_t count) {
  const bool others = count > d / 2;
  std::vector<bool> drawn(d);
  uint64_t left = others ? d - count : count;
  for (uint64_t i = 0; left > 0; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(draw(key, i)) * d >> 64);
    left -= !drawn[at];
    drawn[at] = true;
  }
  std::vector<uint64_t> positions;
  for (uint64_t i = 0; i < d; ++i)
    if (drawn[i] != others) positions.push_back(i);
  return positions;
}

// What reaches a threshold that a sample of one value a stretch tells (lib/sparsify/dgc.hpp).
std::vector<uint64_t> by_sample(const tensor& g, uint64_t key, uint64_t count, double share) {
  const uint64_t d = g.elements;
  const auto wanted = static_cast<uint64_t>(std::floor(share * static_cast<double>(d) + 1e-9));
  const uint64_t sampled = std::min(d, std::max<uint64_t>(1024, wanted)), slack = 3 * count / 10;
  if (sampled == d || count >= d) return largest(g, count);
  const auto magnitude_at = [&](uint64_t i) { return magnitude_of(g.type, bits_at(g.type, g.data, i)); };
  const auto part = [&](uint64_t i) { return static_cast<uint64_t>(static_cast<unsigned __int128>(d) * i / sampled); };
  std::vector<uint32_t> sample(sampled);
  for (uint64_t i = 0; i < sampled; ++i) sample[i] = magnitude_at(part(i) + draw(key, i) % (part(i + 1) - part(i)));
  std::sort(sample.rbegin(), sample.rend());
  const auto rank = static_cast<uint64_t>(static_cast<unsigned __int128>(count) * sampled / d);
  uint32_t low = std::max(1u, sample[std::max<uint64_t>(1, rank) - 1]);
  const auto reached = [&] {
    return positions_where(g, [&](uint32_t bits) { return magnitude_of(g.type, bits) >= low; });
  };
  auto positions = reached();
  const uint32_t infinity = g.type == dtype::f32 ? 0x7f800000 : g.type == dtype::f16 ? 0x7c00 : 0x7f80;
  for (int round = 0; round < 10 && positions.size() < count - slack && low > 1; ++round) {
    low = std::min(low, infinity - 1);
    const double least = 0.7 * value_of(g.type, low);
    while (low > 1 && value_of(g.type, low - 1) >= least) --low;  // slow and plain
    positions = reached();
  }
  return positions.size() > count + slack ? largest(g, count) : positions;
}

}  // namespace

std::optional<std::vector<uint64_t>> kept_by(const plan_stage& sparsify, const tensor& g, uint64_t seed) {
  const plan_part& method = sparsify.parts.at(0);
  if (method.name == "none") return positions_where(g, [&](uint32_t bits) { return magnitude_of(g.type, bits) != 0; });
  if (method.name == "topr") return largest(g, topr_count(method, g.elements));
  if (method.name == "random") return by_chance(sparsify_key(seed, 3), g.elements, topr_count(method, g.elements));
  if (method.name == "dgc")
    return by_sample(g, sparsify_key(seed, 4), topr_count(method, g.elements),
                     number_argument(method, DR_ROLE_SPARSIFY, "sample"));
  if (method.name == "threshold") {
    const double least = number_argument(method, DR_ROLE_SPARSIFY, "value");
    return positions_where(g, [&](uint32_t bits) {
      const uint32_t magnitude = magnitude_of(g.type, bits);
      return magnitude != 0 && !(value_of(g.type, magnitude) < least);  // NaN ranks above infinity: kept
    });
  }
  return std::nullopt;
}

uint64_t count_nonzeros(const tensor& g) {
  uint64_t count = 0;
  for (uint64_t i = 0; i < g.elements; ++i) count += magnitude_of(g.type, bits_at(g.type, g.data, i)) != 0;
  return count;
}

}  // namespace dr::compare
