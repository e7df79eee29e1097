// A part of a universe in which frames are added up sparse: sums and which rows have one. Its cost goes with the rows
// that are there.
#pragma once

#include <cstdint>

namespace dr {

// Rows of one frame in a tile: `count` values rows at most, of which those below `end` (of support) count. Row r of the
// frame is row r + shift of the tile (mod 2^32).
struct tile_part {
  const uint32_t* support;  // ascending; nullptr: rows from `first` on
  const void* values;       // of the first of them, `width` each
  uint64_t count, first, end;
  uint32_t shift;
};

class union_tile {
 public:
  static constexpr uint64_t elements = 32768;  // rows · columns

  // sums[elements], of which rows · columns are cleared. Columns of a row that has more are added up a band after the
  // other.
  union_tile(float* sums, uint64_t rows, uint32_t columns);

  // Adds weight · values of columns [band, band + columns) of rows of `width`; or only notes the rows.
  uint64_t add(const tile_part& p, uint32_t from_type, uint32_t width, uint64_t band, float weight);
  uint64_t mark(const tile_part& p);  // both: how many rows those were

  // How many rows there are. The tile is then as new.
  uint64_t count_and_clear();
  // Writes indices (first + row) and sums, rounded once, to out's rows from `at` on: columns from `band` on, rows of
  // `width`. The tile is then as new. indices may be nullptr. Returns how many rows those were.
  uint64_t hand_over(uint64_t first, uint64_t at, uint32_t index_type, void* indices, uint32_t to_type, uint32_t width,
                     uint64_t band, void* values);

 private:
  void note(uint32_t row) {
    seen_[row / 64] |= uint64_t{1} << (row % 64);
    touched_[row / 64] = 1;
  }
  template <class F>
  void each_touched(F&& f);
  template <class F>
  static uint64_t each_row(const tile_part& p, F&& f);

  float* sums_;
  uint64_t columns_;
  uint64_t seen_[elements / 64];    // a bit a row
  uint8_t touched_[elements / 64];  // whether a word of it is not 0
};

}  // namespace dr
