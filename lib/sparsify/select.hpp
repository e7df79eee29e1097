// Selection of elements. `keep_*` find the selected positions and values in one pass over the gradient, with every
// instruction set. The other functions are the plain definition, in two steps: select_* find a magnitude and the number
// of ties, compact_* the positions, so a tensor may be selected as a whole and compacted in segments.
#pragma once

#include <cstdint>
#include <span>

#include "core/arena.hpp"
#include "core/pool.hpp"
#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"
#include "sparsify/select_kernel.hpp"

namespace dr {

struct selection {
  uint32_t above;  // every magnitude above it is selected,
  uint64_t ties;   // and the first so many that equal it
  uint64_t count;  // the number of selected values
};

// The `target` largest magnitudes of n values, never zeros; by radix: 11 + 10 + 10 bits, at most three reads.
selection select_largest(uint32_t dtype, const void* values, uint64_t n, uint64_t target);

// The smallest magnitude of at least `threshold` >= 0, never that of zero; infinity if there is none.
uint32_t magnitude_from(uint32_t dtype, double threshold);

// Magnitudes of at least `threshold` >= 0, never zeros. NaN ranks above infinity, so it is selected.
selection select_from(uint32_t dtype, const void* values, uint64_t n, double threshold);

// Positions of the selected among n values, below 2^32; subtracts the ties that it selects from s.ties.
uint64_t compact_selected(uint32_t dtype, const void* values, uint64_t n, selection& s, uint32_t* positions);

// Calls f(first, n) for each run of rows of `width` values that are not all zeros, of either sign: a masked gradient has
// -0 by the thousand.
template <class F>
void each_nonzero_run(uint32_t dtype, const void* values, uint64_t rows, uint32_t width, F&& f) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    const auto is_nonzero = [&](uint64_t row) {
      uint32_t any = 0;
      for (uint32_t w = 0; w < width; ++w) any |= magnitude<T>(v[row * width + w]);
      return any != 0;
    };
    for (uint64_t end = 0; end < rows; ++end) {
      const uint64_t first = end;
      while (end < rows && is_nonzero(end)) ++end;
      if (end > first) f(first, end - first);
    }
  });
}

// The positions of rows that are not all zeros.
uint64_t compact_rows(uint32_t dtype, const void* values, uint64_t rows, uint32_t width, uint32_t* positions);

// ---- In one pass ------------------------------------------------------------------------------------------

// A run of the values to select from. A segment of a tensor is a range: one piece or several that follow one another.
struct select_piece {
  const void* values;  // nullptr: the source's `load` makes them
  uint64_t n;
  uint32_t position;  // of the first value
  uint32_t range;     // ascending
  uint64_t before;    // values of the pieces before it
};
// Requests to a source that computes its values. hint: prefetch a few (returns nothing); peek: these few, before the
// pass; first: every value once, in consecutive runs; again: once more.
enum class select_load { hint, peek, first, again };

struct select_source {
  uint32_t dtype;
  std::span<const select_piece> pieces;
  // n values of a piece, from `at` on; n <= select_run. `room` is a buffer for n values.
  const void* (*load)(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) = nullptr;
  void* self = nullptr;
  // The f32 values of a piece that `load` makes. If set, selected values become 0 there as they are found: later every
  // one would be a cache miss.
  float* (*place)(void* self, size_t piece) = nullptr;
  // For values that stand for several elements (blocks). `found` is called with the pairs [to, to + n) that were found
  // in a piece, while their elements are in the cache; by several workers at once. `cut`: of the pairs [from, from + n)
  // of a range those above `above`, and the first `ties` that equal it, become the pairs from `to` on.
  void (*found)(void* self, size_t piece, const uint32_t* positions, uint64_t n, uint64_t to) = nullptr;
  void (*cut)(void* self, uint32_t range, const uint32_t* positions, const void* values, uint64_t from, uint64_t n,
              uint64_t to, uint32_t above, uint64_t ties) = nullptr;

  uint64_t elements() const { return pieces.empty() ? 0 : pieces.back().before + pieces.back().n; }
};

// The number of selected values; the magnitude from which on the source's copies are 0; the elements of a block.
struct selection_result {
  uint64_t count;
  uint32_t cleared_from = 0x80000000;
  uint32_t block = 1;
};

// The selected pairs.
struct select_memory {
  uint32_t* positions;  // of each range ascending,
  void* values;         // and the values there
  uint64_t* ends;       // [ranges]: the pairs of range k are [ends[k - 1], ends[k])
  uint64_t capacity;    // pairs that fit

  // For `target` of n values in `ranges` ranges (target = n: any number of them).
  static select_memory lay_out(arena& memory, uint32_t dtype, uint64_t n, uint64_t target, uint64_t ranges);
};

// Memory of a worker to find the target-th magnitude: the magnitudes of a sample, and those near the target-th.
struct select_scratch {
  uint32_t *sample, *middle;
  uint64_t sample_capacity, middle_capacity;
  // With several workers: the pairs that one worker finds in a block.
  uint32_t *positions, *near;
  void* values;
  uint64_t block_capacity;

  // Grows to the largest of all calls.
  void grow(uint64_t n, uint64_t target, bool shared);
  select_scratch lay_out(arena& memory) const;
};

// The workers of a selection: those of a pool, every one with its own scratch. The result is the same for any number.
struct select_crew {
  const select_scratch* scratch = nullptr;  // [workers]
  pool* workers = nullptr;                  // nullptr: the caller alone
  cpu_level level = cpu();
};
inline constexpr uint64_t select_shared = 1 << 18;  // fewer values are not worth sharing

// Selects every magnitude of at least `low` >= 1. The memory must have room for all.
selection_result keep_from(const select_source& source, uint32_t low, const select_memory& memory,
                           const select_crew& crew = {});

// Selection of the largest values. A sample estimates the target-th magnitude; one pass collects
// values a little below it, too, and the surplus is cut off. If the sample's estimate fails, a second pass follows,
// and as a last resort the radix selection. loaded: the source's values have all been made before.
selection_result keep_largest(const select_source& source, uint64_t target, const select_memory& memory,
                              const select_crew& crew, bool loaded = false);

}  // namespace dr
