#include "sparsify/random.hpp"

#include <algorithm>

#include "primitive/rng.hpp"

namespace dr {

void choose_random(uint64_t key, uint64_t d, uint64_t target, uint64_t* chosen) {
  const bool others = target > d / 2;
  std::fill_n(chosen, random_words(d), others ? ~uint64_t{0} : 0);
  if (others && d % 64) chosen[d / 64] = low_mask(d % 64);
  uint64_t left = others ? d - target : target;
  for (uint64_t i = 0; left > 0; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(draw(key, i)) * d >> 64);
    const uint64_t bit = uint64_t{1} << (at % 64), fresh = (chosen[at / 64] >> (at % 64) & 1) == others;
    chosen[at / 64] = others ? chosen[at / 64] & ~bit : chosen[at / 64] | bit;
    left -= fresh;
  }
}

uint64_t keep_chosen(const select_source& source, const uint64_t* indices, const uint64_t* chosen,
                     const select_memory& memory) {
  uint64_t count = 0, begin = 0;  // begin: of the piece, among all values
  uint32_t range = 0;
  for (size_t k = 0; k < source.pieces.size(); ++k) {
    const select_piece& p = source.pieces[k];
    for (; range < p.range; ++range) memory.ends[range] = count;
    const uint64_t before = count;
    const auto keep = [&](uint64_t at) { memory.positions[count++] = static_cast<uint32_t>(at); };  // in the piece
    if (indices) {
      for (uint64_t i = 0; i < p.n; ++i)
        if (const uint64_t x = indices[begin + i]; chosen[x / 64] >> (x % 64) & 1) keep(i);
    } else {
      const uint64_t end = begin + p.n;
      for (uint64_t word = begin / 64; 64 * word < end; ++word) {
        uint64_t bits = chosen[word];
        if (64 * word < begin) bits &= ~low_mask(begin % 64);
        if (end - 64 * word < 64) bits &= low_mask(end % 64);
        for (; bits; bits &= bits - 1) keep(64 * word + countr_zero(bits) - begin);
      }
    }
    // The values apart, so that their cache misses overlap. Those that have to be made are made all, once.
    with_value_type(source.dtype, [&](auto type) {
      using bits = typename decltype(type)::bits;
      auto* const kept = static_cast<bits*>(memory.kept);
      uint64_t i = before;
      if (p.values)
        for (; i < count; ++i) kept[i] = static_cast<const bits*>(p.values)[memory.positions[i]];
      alignas(64) std::byte room[4 * select_run];
      for (uint64_t at = 0; !p.values && at < p.n; at += select_run) {
        const auto n = static_cast<uint32_t>(std::min<uint64_t>(select_run, p.n - at));
        const auto* const v = static_cast<const bits*>(source.load(source.self, k, at, n, select_load::first, room));
        for (; i < count && memory.positions[i] < at + n; ++i) kept[i] = v[memory.positions[i] - at];
      }
    });
    for (uint64_t i = before; i < count; ++i) memory.positions[i] += p.position;
    begin += p.n;
  }
  if (!source.pieces.empty()) memory.ends[range] = count;
  return count;
}

}  // namespace dr
