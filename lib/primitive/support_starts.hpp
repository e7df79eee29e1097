// The position in a support at which each tile of the output begins. A merge by tiles reads it and needs no search.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"
#include "primitive/ascending.hpp"
#include "primitive/bits.hpp"

namespace dr {

inline constexpr uint32_t merge_tile = 4096;  // values of an output a block

// The part of an output that one row of every frame covers; or an output that is a part of the one row (bucket=flat).
struct merge_out {
  void* values;
  uint64_t elements;  // universe · width
  uint64_t first;     // elements of the row before it
  uint32_t first_tile;
  uint8_t dtype, reserved[3];
};

// The output that has an element of the row, of outputs that are parts of it.
DR_HD inline const merge_out& out_of_element(const merge_out* outs, uint32_t n, uint64_t element) {
  return last_where(outs, n, [&](const merge_out& o) { return o.first <= element; });
}

// The tiles of the outputs that a row covers.
struct row_tiles {
  const merge_out* outs;  // that are its parts
  uint32_t cuts;          // their number; 0: it is one output's

  // The first row of a tile, and the first tile whose first row is above a row.
  DR_HD uint64_t first_row(uint32_t width, uint64_t tile) const {
    uint64_t element = tile * merge_tile;
    if (cuts) {
      const merge_out& o = last_where(outs, cuts, [&](const merge_out& x) { return x.first_tile <= tile; });
      element = o.first + (tile - o.first_tile) * merge_tile;
    }
    return width == 1 ? element : element / width;
  }
  DR_HD uint64_t tile_above(uint32_t width, uint64_t row) const {
    const uint64_t end = (row + 1) * width;
    if (!cuts) return ceil_div(end, merge_tile);
    const merge_out& o = out_of_element(outs, cuts, row * width);
    return o.first_tile + ceil_div(end - o.first, merge_tile);
  }
  DR_HD uint64_t all(uint32_t universe, uint32_t width) const {
    if (!cuts) return ceil_div(uint64_t{universe} * width, merge_tile);
    const merge_out& o = outs[cuts - 1];
    return o.first_tile + ceil_div(o.elements, merge_tile);
  }
};

// Of one row: a support that ascends below `universe`, of rows of `width` values.
struct support_starts {
  uint32_t* starts;  // rows before every tile of the outputs, and all rows
  uint32_t universe, width;
  row_tiles tiles;

  // A lane's share of the tiles that begin among n rows, of which the first is row `begin` of the support. before: the row
  // ahead of them, if there is one; last: none follow. A tile belongs to one part: the one that has its first row, else the last.
  DR_HD void list(const uint32_t* support, uint32_t n, uint64_t begin, uint32_t before, bool last, unsigned lane,
                  unsigned lanes) const {
    const uint64_t end = tiles.all(universe, width) + 1;
    const uint64_t above = last ? end : tiles.tile_above(width, support[n - 1]);
    for (uint64_t t = (begin ? tiles.tile_above(width, before) : 0) + lane; t < above && t < end; t += lanes)
      starts[t] = static_cast<uint32_t>(begin + lower_bound(support, n, tiles.first_row(width, t)));
  }
};

}  // namespace dr
