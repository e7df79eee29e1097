// Walks over a base by class of its words' keys, a block at a time.
#pragma once

#include "codecs/family/classes/classes.hpp"
#include "primitive/cpu.hpp"

namespace dr {

inline constexpr uint32_t class_block = 4096, class_groups = class_block / 64;

// Number of visited words per class.
using class_counts = std::array<uint64_t, classes_max>;

// The ranks of ascending changed words within their classes. Of block [first, first + n): changed[0, m) are in it.
// Adds the block to `counts`.
struct rank_call {
  uint32_t word_size;
  const void* base;
  uint64_t first;
  uint32_t n;
  const class_list* classes;
  const uint8_t* of_key;  // [256] their table
  const uint32_t* changed;
  uint32_t m;
  class_counts* counts;
  uint8_t* of;     // [m] class
  uint32_t* rank;  // [m]
};
// The inverse: the words of a block whose ranks are next in the lists of their classes. Advances next[c]; a list ascends
// and ends with a rank beyond all words. Returns their number; room + 1 if there are more than `room`.
struct select_call {
  uint32_t word_size;
  const void* base;
  uint64_t first;
  uint32_t n;
  const class_list* classes;
  class_counts* counts;
  const uint32_t** next;
  uint64_t room;
  uint32_t* changed;
};

// For the twins: `take` of class_walk_loops.hpp, a group at a time.
template <class Masks>
DR_EVERYWHERE uint32_t take_by_group(uint64_t* mask, const uint64_t* more, uint16_t* before) {
  uint32_t sum = 0;
  for (uint32_t g = 0; g < class_groups; ++g) {
    before[g] = static_cast<uint16_t>(sum);
    if (more) mask[g] &= ~more[g];
    sum += Masks::ones(mask[g]);
  }
  return sum;
}

void rank_scalar(const rank_call& c);
void rank_avx2(const rank_call& c);
void rank_avx512(const rank_call& c);
uint64_t select_scalar(const select_call& c);
uint64_t select_avx2(const select_call& c);
uint64_t select_avx512(const select_call& c);
inline constexpr cpu_table<decltype(&rank_scalar)> class_ranks{rank_scalar, on_x86(rank_avx2), on_x86(rank_avx512)};
inline constexpr cpu_table<decltype(&select_scalar)> class_select{select_scalar, on_x86(select_avx2),
                                                                  on_x86(select_avx512)};

}  // namespace dr
