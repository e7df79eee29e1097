// The loops of class_walk.hpp, compiled once per instruction set: included only by its twins, after a struct `masks` with
//   at_least(keys, threshold)  a bit per key, for 64 keys: whether it is not below the threshold
//   nth(mask, n)               the bit of a mask before which n are set
//   ones(mask)                 how many are set
//   take(mask, more, before)   for 64 groups: removes the words of `more` (nullptr: none) from `mask`, and counts those of
//                              groups before. Returns their number
//   last_group(before, rank)   the last of 64 groups before which there are at most `rank` words of a class
//   bits                       of primitive/set_bits_vectors.hpp
namespace dr {
namespace {

// The class members in a block of words, in groups of 64. Neither rank nor select branches on the content of a group.
struct class_groups_of {
  alignas(64) uint8_t keys[class_block];
  alignas(64) uint64_t mask[classes_max][class_groups];
  // Of a class: words in groups before; above all ranks for groups past the end.
  alignas(64) uint16_t before[classes_max][class_groups];
  uint32_t words[classes_max];

  // For n words; 0 after them, up to whole groups.
  template <class Bits>
  void put_keys(const Bits* from, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) keys[i] = word_key(from[i]);
    for (uint32_t i = n; i % 64; ++i) keys[i] = 0;
  }

  // Of n words of `base` from `first` on.
  class_groups_of(uint32_t word_size, const void* base, uint64_t first, uint32_t n, const class_list& classes) {
    if (word_size == 8)
      put_keys(static_cast<const uint64_t*>(base) + first, n);
    else if (word_size == 4)
      put_keys(static_cast<const uint32_t*>(base) + first, n);
    else if (word_size == 2)
      put_keys(static_cast<const uint16_t*>(base) + first, n);
    else
      put_keys(static_cast<const uint8_t*>(base) + first, n);
    const uint32_t groups = (n + 63) / 64;
    for (uint32_t g = 0; g < groups; ++g) mask[0][g] = ~uint64_t{0};
    if (n % 64) mask[0][groups - 1] = low_mask(n % 64);
    // Each pass fetches its part of the next block. (It need not be there.)
    const auto* const next = static_cast<const char*>(base) + (first + n) * word_size;
    uint32_t passes = 0;
    const auto fetch = [&] {
      const uint32_t lines = class_block * word_size / 64, of = 2 * classes.count - 1;
      for (uint32_t k = lines * passes / of; k < lines * (passes + 1) / of; ++k) __builtin_prefetch(next + 64 * k);
      ++passes;
    };
    // Words of a class or a later one; key 0, used after the end, belongs to the first.
    for (uint32_t c = 1; c < classes.count; ++c, fetch())
      for (uint32_t g = 0; g < groups; ++g) mask[c][g] = masks::at_least(keys + 64 * g, classes.threshold[c - 1]);
    for (uint32_t c = 0; c < classes.count; ++c)
      for (uint32_t g = groups; g < class_groups; ++g) mask[c][g] = 0;
    for (uint32_t c = 0; c < classes.count; ++c, fetch()) {
      words[c] = masks::take(mask[c], c + 1 < classes.count ? mask[c + 1] : nullptr, before[c]);
      for (uint32_t g = groups; g < class_groups; ++g) before[c][g] = 2 * class_block;
    }
  }
};

inline void rank_with(const rank_call& c) {
  const class_groups_of block(c.word_size, c.base, c.first, c.n, *c.classes);
  for (uint32_t i = 0; i < c.m; ++i) {
    const auto at = static_cast<uint32_t>(c.changed[i] - c.first), g = at / 64;
    const uint32_t k = c.of_key[block.keys[at]];
    c.of[i] = static_cast<uint8_t>(k);
    c.rank[i] =
        static_cast<uint32_t>((*c.counts)[k] + block.before[k][g] + masks::ones(block.mask[k][g] & low_mask(at % 64)));
  }
  for (uint32_t k = 0; k < c.classes->count; ++k) (*c.counts)[k] += block.words[k];
}

inline uint64_t select_with(const select_call& c) {
  const class_groups_of block(c.word_size, c.base, c.first, c.n, *c.classes);
  uint64_t changed[class_groups] = {};
  for (uint32_t k = 0; k < c.classes->count; ++k) {
    const uint64_t first = (*c.counts)[k], end = first + block.words[k];
    const uint32_t* at = c.next[k];
    for (; *at < end; ++at) {
      const auto rank = static_cast<uint32_t>(*at - first);
      const uint32_t g = masks::last_group(block.before[k], rank);
      changed[g] |= masks::nth(block.mask[k][g], rank - block.before[k][g]);
    }
    c.next[k] = at;
    (*c.counts)[k] = end;
  }
  uint16_t offsets[class_block + 64];
  uint64_t found = 0;
  for (uint32_t g = 0; g < (c.n + 63) / 64; ++g) found += masks::bits::put(changed[g], 64 * g, offsets + found);
  if (found > c.room) return c.room + 1;
  for (uint64_t i = 0; i < found; ++i) c.changed[i] = static_cast<uint32_t>(c.first + offsets[i]);
  return found;
}

}  // namespace
}  // namespace dr
