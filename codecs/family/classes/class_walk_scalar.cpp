#include "codecs/family/classes/class_walk.hpp"

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
};

}  // namespace
}  // namespace dr

#include "codecs/family/classes/class_walk_loops.hpp"

namespace dr {

void rank_scalar(const rank_call& c) { rank_with(c); }
uint64_t select_scalar(const select_call& c) { return select_with(c); }

}  // namespace dr
