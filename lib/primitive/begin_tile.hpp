// The first launch of a call: zeroes counters, and transfers descriptors to the device in its own argument, so that
// there is no copy and a graph may be replayed.
#pragma once

#include <cstdint>

#include "primitive/block.hpp"

namespace dr {

// Bytes that a launch transfers; begin_small: one that is part of a fused one.
inline constexpr uint64_t begin_small = 1024, begin_few = 3840, begin_many = 32512;

inline constexpr unsigned begin_lanes = 256;
inline constexpr uint64_t begin_tile = 4 * 16 * begin_lanes;  // bytes that a block zeroes

template <uint64_t Bytes>
struct begin_call {
  static constexpr const char* name = "begin_call";
  static constexpr unsigned lanes = begin_lanes, grid_phases = 1;
  struct args {
    uint64_t* zero;  // `zero_words` of them; 16-byte aligned
    uint64_t zero_words;
    uint64_t* to;
    uint64_t words;
    uint64_t data[Bytes / 8];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    b.phase([&](unsigned lane) {
      const uint64_t first = uint64_t{b.index()} * lanes + lane, step = uint64_t{b.blocks()} * lanes;
      for (uint64_t i = first; i < a.words; i += step) a.to[i] = a.data[i];
      for (uint64_t i = first; i < a.zero_words; i += step) a.zero[i] = 0;
    });
  }
};

}  // namespace dr
