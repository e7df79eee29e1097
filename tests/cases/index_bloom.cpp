#include <algorithm>

#include "cases/samples.hpp"

namespace dr::cases {
namespace {

enum { policy, hashes, bits_per_index, first_seed };  // wire fields
enum { leftmost, p0 };

// MurmurHash3_x86_32 of any bytes, as its author describes it (blocks of four; ours are one block).
uint32_t murmur3(std::span<const uint8_t> key, uint32_t seed) {
  const auto rotate = [](uint32_t x, int by) { return x << by | x >> (32 - by); };
  uint32_t h = seed;
  for (size_t i = 0; i + 4 <= key.size(); i += 4) {
    const uint32_t k = key[i] | key[i + 1] << 8 | key[i + 2] << 16 | static_cast<uint32_t>(key[i + 3]) << 24;
    h = rotate(h ^ rotate(k * 0xcc9e2d51, 15) * 0x1b873593, 13) * 5 + 0xe6546b64;
  }
  h ^= static_cast<uint32_t>(key.size());
  h = (h ^ h >> 16) * 0x85ebca6b;
  h = (h ^ h >> 13) * 0xc2b2ae35;
  return h ^ h >> 16;
}

std::string judge(const observation& o) {
  const uint64_t m = std::max<uint64_t>(32, ((o.in.count * o.fields[bits_per_index] >> 16) + 31) / 32 * 32);
  const auto bits = [&](uint32_t i) {
    std::vector<uint64_t> all;
    const uint8_t key[] = {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i >> 16),
                           static_cast<uint8_t>(i >> 24)};
    for (uint64_t j = 0; j < o.fields[hashes]; ++j)
      all.push_back(murmur3(key, static_cast<uint32_t>(o.fields[first_seed] + j)) % m);
    return all;
  };
  std::vector<bool> filter(m);
  for (const uint32_t i : words(o.in.elements))
    for (const uint64_t b : bits(i)) filter[b] = true;
  if (o.payload.size() != m / 8) return "the filter is not of " + std::to_string(m) + " bits";
  for (uint64_t b = 0; b < m; ++b)
    if ((o.payload[b / 8] >> b % 8 & 1) != filter[b]) return "bit " + std::to_string(b) + " of the filter is wrong";

  std::vector<uint32_t> positives;
  for (uint32_t i = 0; i < o.in.universe; ++i)
    if (std::ranges::all_of(bits(i), [&](uint64_t b) { return filter[b]; })) positives.push_back(i);
  if (o.fields[policy] == leftmost) positives.resize(o.in.count);
  return std::ranges::equal(positives, o.told) ? "" : "it tells another support than the policy takes of the positives";
}

}  // namespace

// Decode asks the filter for every element, so universes are small here.
codec_case index_bloom() {
  return {DR_ROLE_INDEX,
          "bloom",
          {"bloom", "bloom(policy=p0)", "bloom(policy=p0,fpr=0.3,max_ratio=1)",
           "bloom(policy=leftmost,fpr=0.5,seed=4294967290)", "bloom(fpr=1e-19)"},
          supports("bloom", 70000),
          judge};
}

}  // namespace dr::cases
