#include "codecs/family/classes/class_walk.hpp"
#include "primitive/set_bits_vectors.hpp"

namespace dr {
namespace {

struct masks {
  static uint64_t at_least(const uint8_t* keys, uint8_t threshold) {
    uint64_t mask = 0;
    for (unsigned i = 0; i < 64; ++i) mask |= uint64_t{keys[i] >= threshold} << i;
    return mask;
  }
  static uint64_t nth(uint64_t mask, unsigned n) {
    for (; n; --n) mask &= mask - 1;
    return mask & (0 - mask);
  }
  static unsigned ones(uint64_t mask) { return popcount(mask); }
  static uint32_t take(uint64_t* mask, const uint64_t* more, uint16_t* before) {
    return take_by_group<masks>(mask, more, before);
  }
  static unsigned last_group(const uint16_t* before, uint32_t rank) {
    return static_cast<unsigned>(std::upper_bound(before, before + 64, rank) - before - 1);
  }
  using bits = set_bits_scalar;
};

}  // namespace
}  // namespace dr

#include "codecs/family/classes/class_walk_loops.hpp"

namespace dr {

void rank_scalar(const rank_call& c) { rank_with(c); }
uint64_t select_scalar(const select_call& c) { return select_with(c); }

}  // namespace dr
