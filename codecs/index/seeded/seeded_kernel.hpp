// A support that both ends draw from a key (SPEC.md).
#pragma once

#include "codecs/family/ones/ones.hpp"
#include "primitive/rng.hpp"

namespace dr {

// A bitmap of the universe, in whole words.
constexpr uint64_t seeded_scratch(uint64_t universe) { return 8 * ceil_div(universe, 64); }

// A draw is new with a probability above 1/2, since at most half of the universe is drawn; so by Hoeffding m new ones
// need more than this with less than 2^-184, and for one of the 2^64 keys with less than 2^-120. It bounds the time,
// for any key.
constexpr uint64_t seeded_draws_max(uint64_t m) { return 4 * m + 256; }

// The support: the first `count` distinct draws, or all but the first universe - count of them if those are fewer.
//   1 <= count <= universe < 2^32     scratch: seeded_scratch bytes, aligned to 8     x [count], or NULL
// False if the draws run out.
inline bool seeded_support(uint64_t key, uint64_t universe, uint64_t count, cpu_level level, std::byte* scratch,
                           uint32_t* x) {
  __extension__ using wide = unsigned __int128;
  auto* const words = reinterpret_cast<uint64_t*>(scratch);
  const uint64_t n = ceil_div(universe, 64);
  std::memset(words, 0, 8 * n);
  const bool without = count > universe / 2;
  uint64_t missing = without ? universe - count : count;
  for (uint64_t i = 0, last = seeded_draws_max(missing); missing; ++i) {
    if (i == last) return false;
    const auto at = static_cast<uint64_t>(wide{draw(key, i)} * universe >> 64);
    const uint64_t word = words[at / 64], bit = uint64_t{1} << at % 64;
    missing -= !(word & bit);
    words[at / 64] = word | bit;
  }
  if (without) {
    for (uint64_t w = 0; w < n; ++w) words[w] = ~words[w];
    if (universe % 64) words[n - 1] &= low_mask(universe % 64);
  }
  list_ones<false>.at(level)(reinterpret_cast<const uint8_t*>(words), 0, 8 * n, 0, count, x);
  return true;
}

}  // namespace dr
