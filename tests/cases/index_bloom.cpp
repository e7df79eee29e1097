#include <algorithm>
#include <map>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

enum { policy, hashes, bits_per_index, first_seed, choice, layout };  // wire fields
enum { by_policy, middle, rightmost, p1, p2 };                        // of choice; policy: leftmost, p0

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

uint32_t murmur3(uint32_t i, uint32_t seed) {
  const uint8_t key[] = {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i >> 16),
                         static_cast<uint8_t>(i >> 24)};
  return murmur3(key, seed);
}

// The bits of element i, by either layout.
std::vector<uint64_t> bits_of(const observation& o, uint64_t m, uint32_t i) {
  constexpr uint32_t salt[] = {0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d,
                               0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31};
  const auto seed = static_cast<uint32_t>(o.fields[first_seed]);
  std::vector<uint64_t> all;
  if (o.fields[layout]) {
    const uint32_t h = murmur3(i, seed), g = murmur3(h, seed);
    for (uint64_t j = 0; j < 8; ++j) all.push_back((h * (m / 256) >> 32) * 256 + 32 * j + (g * salt[j] >> 27));
  } else {
    for (uint64_t j = 0; j < o.fields[hashes]; ++j) all.push_back(murmur3(i, static_cast<uint32_t>(seed + j)) % m);
  }
  return all;
}

// What p2 ranks positives by before the hash: 2^31 if sure.
std::vector<uint64_t> scores_of(const observation& o, uint64_t m, const std::vector<uint32_t>& positives) {
  std::map<uint64_t, std::vector<size_t>> sets;  // of each bit: who hashes to it, as often as he does
  for (size_t i = 0; i < positives.size(); ++i)
    for (const uint64_t b : bits_of(o, m, positives[i])) sets[b].push_back(i);
  std::vector<uint64_t> score(positives.size()), claim(positives.size());
  for (const auto& [b, members] : sets)
    if (members.size() == 1) score[members[0]] = uint64_t{1} << 31;
  const auto each_unexplained = [&](auto&& f) {
    for (const auto& [b, members] : sets)
      if (std::ranges::none_of(members, [&](size_t i) { return score[i] >> 31; })) f(members);
  };
  each_unexplained([&](const auto& members) {
    for (const size_t i : members) claim[i] += 65536 / std::min<size_t>(members.size(), 65535);
  });
  each_unexplained([&](const auto& members) {
    uint64_t highest = 0;
    for (const size_t i : members) highest = std::max(highest, claim[i]);
    for (const size_t i : members)
      if (claim[i] == highest) score[i] += 65536 / std::min<size_t>(members.size(), 65535);
  });
  return score;
}

std::vector<uint32_t> chosen(const observation& o, uint64_t m, const std::vector<uint32_t>& positives) {
  const uint64_t r = o.in.count, n = positives.size();
  const auto some = [&](uint64_t from) {
    return std::vector<uint32_t>(positives.begin() + static_cast<ptrdiff_t>(from),
                                 positives.begin() + static_cast<ptrdiff_t>(from + r));
  };
  switch (o.fields[choice]) {
    case by_policy: return o.fields[policy] ? positives : some(0);
    case middle: return some((n - r) / 2);
    case rightmost: return some(n - r);
  }
  uint32_t salt = 0;
  for (int i = 0; i < 4; ++i) salt |= uint32_t{o.payload[m / 8 + static_cast<size_t>(i)]} << 8 * i;
  const auto score = o.fields[choice] == p2 ? scores_of(o, m, positives) : std::vector<uint64_t>(n);
  std::vector<std::pair<std::pair<uint64_t, uint32_t>, uint32_t>> ranked;
  for (size_t i = 0; i < n; ++i) ranked.push_back({{score[i], murmur3(positives[i], salt)}, positives[i]});
  std::ranges::sort(ranked, std::greater());
  std::vector<uint32_t> kept;
  for (size_t i = 0; i < r; ++i) kept.push_back(ranked[i].second);
  std::ranges::sort(kept);
  return kept;
}

std::string judge(const observation& o) {
  const uint64_t granule = o.fields[layout] ? 256 : 32;
  const uint64_t m =
      std::max(granule, ((o.in.count * o.fields[bits_per_index] >> 16) + granule - 1) / granule * granule);
  std::vector<bool> filter(m);
  for (const uint32_t i : words(o.in.elements))
    for (const uint64_t b : bits_of(o, m, i)) filter[b] = true;
  if (o.payload.size() != m / 8 + (o.fields[choice] >= p1 ? 4 : 0))
    return "the filter is not of " + std::to_string(m) + " bits";
  for (uint64_t b = 0; b < m; ++b)
    if ((o.payload[b / 8] >> b % 8 & 1) != filter[b]) return "bit " + std::to_string(b) + " of the filter is wrong";

  std::vector<uint32_t> positives;
  for (uint32_t i = 0; i < o.in.universe; ++i)
    if (std::ranges::all_of(bits_of(o, m, i), [&](uint64_t b) { return filter[b]; })) positives.push_back(i);
  return std::ranges::equal(chosen(o, m, positives), o.told)
             ? ""
             : "it tells another support than the policy takes of the positives";
}

}  // namespace

// Decode asks the filter for every element, so universes are small here.
codec_case index_bloom() {
  return {DR_ROLE_INDEX,
          "bloom",
          {"bloom", "bloom(policy=p0)", "bloom(policy=p0,fpr=0.3,max_ratio=1)",
           "bloom(policy=leftmost,fpr=0.5,seed=4294967290)", "bloom(fpr=1e-19)", "bloom(policy=middle,fpr=0.1)",
           "bloom(policy=rightmost,fpr=0.1)", "bloom(policy=p1,fpr=0.05)", "bloom(policy=p2,fpr=0.05)",
           "bloom(policy=p2,seed=4294967295,bits=5)", "bloom(policy=p0,bits=10,layout=split_block)",
           "bloom(policy=p2,fpr=0.02,layout=split_block)", "bloom(fpr=0.1,layout=split_block)"},
          supports("bloom", 70000),
          judge};
}

}  // namespace dr::cases
