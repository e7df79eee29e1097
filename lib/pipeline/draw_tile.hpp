// The keys of random numbers for a step that only the device knows (DR_CALL_STEP_AT).
#pragma once

#include <cstdint>

#include "primitive/block.hpp"
#include "primitive/rng.hpp"
#include "primitive/row_keys.hpp"

namespace dr {

struct draw_row_keys {
  static constexpr const char* name = "draw_row_keys";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    row_keys* keys;  // shared: of the tensor in its batch, own: the segment; becomes the keys of the step
    const uint64_t* step;
    uint64_t seeded, private_base, private_seed;  // seeded: combined with the seed
    uint32_t rows;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    b.phase([&](unsigned lane) {
      const uint64_t i = uint64_t{b.index()} * lanes + lane;
      if (i >= a.rows) return;
      uint64_t shared = combine(combine(a.seeded, *a.step), a.keys[i].shared);
      if (a.keys[i].own) shared = combine(shared, a.keys[i].own);
      a.keys[i] = {shared, combine(combine(shared, a.private_base), a.private_seed)};
    });
  }
};

}  // namespace dr
