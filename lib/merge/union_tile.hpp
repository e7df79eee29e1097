// A part of a universe in which frames are summed sparse: the sums, and the set of rows with a sum. Its cost is
// proportional to the number of rows.
#pragma once

#include <cstdint>

namespace dr {

// Rows of one frame in a tile: at most `count`, up to `end` (of support). Row r of the frame is row r + shift of the
// tile (mod 2^32).
struct tile_part {
  const uint32_t* support;  // ascending; nullptr: rows from `first` on
  const void* values;       // from the first row on, `width` per row
  uint64_t count, first, end;
  uint32_t shift;
};

class union_tile {
 public:
  static constexpr uint64_t elements = 32768;  // rows · columns

  // sums[elements], of which rows · columns are cleared. Wider rows are summed in bands of columns, one after the
  // other.
  union_tile(float* sums, uint64_t rows, uint32_t columns);

  // Adds weight · values of columns [band, band + columns) of rows of `width`; `mark` only adds the rows to the set.
  // Both return the number of rows.
  uint64_t add(const tile_part& p, uint32_t from_type, uint32_t width, uint64_t band, float weight);
  uint64_t mark(const tile_part& p);

  // Returns the number of rows in the set, and resets the tile.
  uint64_t count_and_clear();
  // Writes indices (first + row) and sums, rounded once, to the output's rows from `at` on: columns from `band` on,
  // rows of `width`. Resets the tile. indices may be nullptr. Returns the number of rows.
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
  uint64_t seen_[elements / 64];    // a bit per row
  uint8_t touched_[elements / 64];  // whether the word is not 0
};

}  // namespace dr
