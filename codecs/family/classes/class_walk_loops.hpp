// The loops of class_walk.hpp, compiled for each instruction set: included by its twins only, after a struct `masks` with
//   at_least(keys, threshold)  a bit for each of 64 keys: whether it is not below the threshold
//   nth(mask, n)               the bit of a mask before which n are set
//   ones(mask)                 how many are set
namespace dr {
namespace {

// Of n words of `base` from `first` on: their keys, and 0 behind them up to whole groups of 64.
template <class Bits>
void put_keys(const void* base, uint64_t first, uint32_t n, uint8_t* keys) {
  const Bits* const words = static_cast<const Bits*>(base) + first;
  for (uint32_t i = 0; i < n; ++i) keys[i] = word_key(words[i]);
  for (uint32_t i = n; i % 64; ++i) keys[i] = 0;
}
inline void put_keys(uint32_t word_size, const void* base, uint64_t first, uint32_t n, uint8_t* keys) {
  if (word_size == 8) return put_keys<uint64_t>(base, first, n, keys);
  if (word_size == 4) return put_keys<uint32_t>(base, first, n, keys);
  if (word_size == 2) return put_keys<uint16_t>(base, first, n, keys);
  put_keys<uint8_t>(base, first, n, keys);
}

inline void rank_with(const rank_call& c) {
  alignas(64) uint8_t keys[class_block];
  put_keys(c.word_size, c.base, c.first, c.n, keys);
  const uint32_t thresholds = c.classes->count - 1;
  auto& counts = c.counts->at_least;
  uint64_t mask_of[classes_max + 1] = {~uint64_t{0}};
  mask_of[c.classes->count] = 0;
  uint32_t i = 0;
  for (uint32_t g = 0; g < c.n; g += 64) {
    for (uint32_t k = 0; k < thresholds; ++k) mask_of[k + 1] = masks::at_least(keys + g, c.classes->threshold[k]);
    for (; i < c.m && c.changed[i] - c.first < g + 64; ++i) {
      const auto at = static_cast<uint32_t>(c.changed[i] - c.first) - g;
      const uint32_t k = c.of_key[keys[g + at]];
      const uint64_t below = low_mask(at);
      c.of[i] = static_cast<uint8_t>(k);
      c.rank[i] = static_cast<uint32_t>(counts[k] - counts[k + 1] + masks::ones(mask_of[k] & ~mask_of[k + 1] & below));
    }
    // (Words past the end have key 0: class 0.)
    counts[0] += c.n - g < 64 ? c.n - g : 64;
    for (uint32_t k = 1; k <= thresholds; ++k) counts[k] += masks::ones(mask_of[k]);
  }
}

inline uint64_t select_with(const select_call& c) {
  alignas(64) uint8_t keys[class_block];
  put_keys(c.word_size, c.base, c.first, c.n, keys);
  const uint32_t thresholds = c.classes->count - 1;
  auto& counts = c.counts->at_least;
  uint64_t mask_of[classes_max + 1] = {}, found = 0;
  for (uint32_t g = 0; g < c.n; g += 64) {
    mask_of[0] = c.n - g < 64 ? low_mask(c.n - g) : ~uint64_t{0};
    for (uint32_t k = 0; k < thresholds; ++k)
      mask_of[k + 1] = masks::at_least(keys + g, c.classes->threshold[k]) & mask_of[0];
    uint64_t changed = 0;
    for (uint32_t k = 0; k <= thresholds; ++k) {
      const uint64_t mask = mask_of[k] & ~mask_of[k + 1], before = counts[k] - counts[k + 1];
      const uint64_t end = before + masks::ones(mask);
      while (*c.next[k] < end) changed |= masks::nth(mask, static_cast<unsigned>(*c.next[k]++ - before));
    }
    for (uint32_t k = 0; k <= thresholds; ++k) counts[k] += masks::ones(mask_of[k]);
    const unsigned more = masks::ones(changed);
    if (more > c.room - found) return c.room + 1;
    for (uint32_t* to = c.changed + found; changed; changed &= changed - 1)
      *to++ = static_cast<uint32_t>(c.first + g + countr_zero(changed));
    found += more;
  }
  return found;
}

}  // namespace
}  // namespace dr
