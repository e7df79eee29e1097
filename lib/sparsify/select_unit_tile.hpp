// Shared by the kernels of selection: a tensor with its scratch, and its values.
#pragma once

#include <cstdint>
#include <cstring>

#include "feedback/feedback_kernel.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/flat_table.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"
#include "sparsify/select_draw_tile.hpp"

namespace dr {

inline constexpr unsigned select_lanes = 256;
inline constexpr uint32_t select_tile = 8192;  // elements a block, in filter
inline constexpr uint32_t chunk_tile = 8192;   // elements a block, in chunks, if a chunk has no more
inline constexpr uint32_t select_bins = 2048, select_sample_bins = 8192;
inline constexpr uint32_t sample_piece = 4, sample_tile = 2048;  // consecutive values; values a block
inline constexpr uint32_t order_tile = 1024;                     // tiles that a block of refine orders
inline constexpr uint32_t collect_tile = 4096;                   // candidates that a block of refine reads
inline constexpr uint32_t select_slice = 2048;                   // candidates a block, in compact
inline constexpr uint32_t chunk_max = 32768;                     // elements of a chunk
inline constexpr uint32_t fallback_tile = 8192;                  // minimum of elements of a block of the fall-back

enum select_kind : uint8_t {
  select_nonzero = 0,
  select_largest_kind = 1,
  select_from_kind = 2,
  select_chance = 3,
  select_in_chunks = 4,
  select_whole = 5
};
enum select_flag : uint8_t { select_needs_finite = 1, select_flat = 2, select_plain = 4, select_solved = 8 };

// One dense tensor, for kernels. Scratch has offsets, in units of 64 bytes, from the base in the launch.
struct select_unit {
  const void* values;  // of a bucket (select_flat): its flat_table
  float* residual;     // or NULL; of a bucket only whether there is feedback
  uint32_t* support;
  void* selected;  // whole: the place of the values that are sent, or NULL: they are sent from where they are
  device_row* row;
  uint32_t d, target, count_max;
  union {
    uint32_t width;
    uint32_t flat_tiles;  // of a bucket, whose width is 1: tiles of the read
  };
  uint32_t capacity;    // of candidates, of which a threshold may find more; of a whole chunk: selected elements
  uint32_t low;         // with a threshold: the smallest selected key; elements of a chunk
  uint32_t first_tile;  // of the launch
  uint32_t zeroed, plain;
  uint16_t sample_blocks;
  uint8_t kind, flags;

  DR_HD constexpr uint32_t chunk_size() const { return low; }
  DR_HD constexpr uint32_t chunk_target_of(uint32_t n) const {
    const uint64_t share = n == low ? capacity : uint64_t{capacity} * n / low;
    return share ? static_cast<uint32_t>(share) : 1;
  }
  DR_HD constexpr bool flat() const { return flags & select_flat; }
  DR_HD constexpr bool solved() const { return flags & select_solved; }  // one block selects all
  DR_HD constexpr uint32_t columns() const { return flat() ? 1 : width; }
  DR_HD const flat_table& bucket() const { return *static_cast<const flat_table*>(values); }
};
static_assert(sizeof(select_unit) == 80);

struct select_common {
  std::byte *zeroed, *plain;
  float beta, gamma;
  uint32_t dtype, infinity;  // infinity: the smallest key that is not finite
};

template <size_t N>
struct select_args {
  select_common common;
  uint32_t jobs, tiles;
  select_unit job[N];
};

// The state of a unit, shared by blocks. Zero when a call begins.
struct select_state {
  uint64_t noted;              // counts: low half: candidates; high half: keys above hi
  uint32_t lo, hi;             // keys
  uint32_t shift;              // (key - lo) >> shift is the bin
  uint32_t listed;             // keys of the bin of rank r,
  uint32_t smallest, largest;  // ~ the smallest of them, and the largest
  uint32_t above, ties;        // the result: keys above `above`, and the first `ties` that equal it
  uint32_t done_bracket, done_refine, order_ticket, ticket;
  uint16_t ready, failed;  // set by refine; failed: the fall-back selects
  uint32_t any_failed;     // of the first unit of a launch: whether any of its units did
};
static_assert(sizeof(select_state) == 64);

// The fall-back's, likewise.
struct fallback_state {
  static constexpr uint32_t steps = 6;  // zero · three digits · counts · writes
  uint32_t ticket, done[steps], reserved;
};
static_assert(sizeof(fallback_state) == 32);

// A tile of rows of `width` values has 2^tile_shift rows. (With width 1 tiles count from the aligned vector that
// includes the first value.)
DR_HD constexpr uint32_t tile_shift(uint32_t width) {
  const unsigned log = ceil_log2(width);
  return log < 10 ? 13 - log : 3;
}

// The layout of a unit's scratch, offsets in bytes; its size is the need that the host reports.
struct select_layout {
  uint32_t tiles, order_blocks, refine_blocks, slices;  // tiles: of the read; slices: of candidates
  uint64_t bins, sample, order, lookback;               // zeroed
  uint64_t fallback, draws, drawn, zeroed;              // by chance: a draw_state; a bit for each position
  uint64_t table, slice, noted, list, counts, plain;    // plain: positions of candidates come first

  DR_HD static constexpr uint32_t list_size(uint32_t target) { return 8192 + target / 512; }

  DR_HD static constexpr select_layout of(const select_unit& u, uint32_t value_size) {
    select_layout l{};
    const bool ranked = u.kind == select_largest_kind;
    if (u.kind == select_whole) l.tiles = u.flat() ? u.flat_tiles : tiles_of(u.d, u.width, value_size);
    if (u.kind == select_whole || u.solved()) {
      l.zeroed = 64;
      return l;
    }
    if (u.kind == select_in_chunks) {
      const uint32_t span = chunk_span(u.chunk_size());
      l.tiles = static_cast<uint32_t>((uint64_t{u.d} + span - 1) / span);
      l.lookback = 64;
      l.zeroed = l.lookback + uint64_t{8} * l.tiles;
      return l;
    }
    l.tiles = u.flat() ? u.flat_tiles : tiles_of(u.d, u.width, value_size);
    l.order_blocks = l.tiles / order_tile + 1;  // (after the last tile is the sum of all)
    l.slices = static_cast<uint32_t>((uint64_t{u.capacity} + select_slice - 1) / select_slice);
    if (u.capacity == 0 && u.d) l.slices = 1;  // which says how many are not listed
    l.refine_blocks = l.order_blocks + (ranked ? (u.capacity - 1) / collect_tile + 1 : 0);
    l.bins = 64;
    l.sample = l.bins + (ranked ? 4 * select_bins : 0);
    l.order = l.sample + (ranked ? 4 * select_sample_bins : 0);
    l.lookback = l.order + uint64_t{8} * l.order_blocks;
    l.fallback = rounded(l.lookback + uint64_t{8} * l.slices);
    l.draws = rounded(l.fallback + (ranked ? sizeof(fallback_state) : 0));
    l.drawn = l.draws + (u.kind == select_chance ? sizeof(draw_state) : 0);
    l.zeroed = l.drawn + (u.kind == select_chance ? uint64_t{4} * (u.d / 32 + 2) : 0);
    l.table = rounded(uint64_t{4} * u.capacity);
    l.slice = l.table + uint64_t{8} * (l.tiles + 1);
    l.noted = rounded(l.slice + uint64_t{4} * l.slices);
    l.plain = l.list = l.counts = l.noted;
    if (!ranked) return l;
    l.list = rounded(l.noted + uint64_t{value_size} * u.capacity);
    l.counts = rounded(l.list + uint64_t{4} * list_size(u.target));
    l.plain = l.counts + uint64_t{8} * (u.d / fallback_tile + 1);
    return l;
  }

  // The elements that a block selects from: whole chunks.
  DR_HD static constexpr uint32_t chunk_span(uint32_t chunk) {
    return chunk < chunk_tile ? chunk_tile / chunk * chunk : chunk;
  }
  // Tiles of the read of d rows that are contiguous in memory.
  DR_HD static constexpr uint32_t tiles_of(uint32_t d, uint32_t width, uint32_t value_size) {
    const uint32_t shift = tile_shift(width), skew = width == 1 ? 16 / value_size - 1 : 0;
    return static_cast<uint32_t>((uint64_t{d} + skew + (1u << shift) - 1) >> shift);
  }

 private:
  DR_HD static constexpr uint64_t rounded(uint64_t size) { return (size + 63) / 64 * 64; }
};

// A unit with its scratch.
template <class Bits>
struct select_view {
  const select_common& common;
  const select_unit& unit;
  select_layout at;
  std::byte *zeroed, *plain;

  template <class Args>
  DR_HD static select_view of(const Args& a, const select_unit& u) {
    return {a.common, u, select_layout::of(u, sizeof(Bits)), a.common.zeroed + uint64_t{64} * u.zeroed,
            a.common.plain + uint64_t{64} * u.plain};
  }
  DR_HD bool is_ranked() const { return unit.kind == select_largest_kind; }
  DR_HD select_state& state() const { return *reinterpret_cast<select_state*>(zeroed); }
  DR_HD uint32_t* bins() const { return reinterpret_cast<uint32_t*>(zeroed + at.bins); }
  DR_HD uint32_t* sample() const { return reinterpret_cast<uint32_t*>(zeroed + at.sample); }
  DR_HD uint64_t* order() const { return reinterpret_cast<uint64_t*>(zeroed + at.order); }
  DR_HD uint64_t* lookback() const { return reinterpret_cast<uint64_t*>(zeroed + at.lookback); }
  DR_HD fallback_state& fallback() const { return *reinterpret_cast<fallback_state*>(zeroed + at.fallback); }
  DR_HD draw_state& draws() const { return *reinterpret_cast<draw_state*>(zeroed + at.draws); }
  DR_HD uint32_t* drawn() const { return reinterpret_cast<uint32_t*>(zeroed + at.drawn); }
  // Of more than a half of the positions those are drawn that are not selected.
  DR_HD bool selects_others() const { return unit.target > unit.d / 2; }
  DR_HD uint32_t* positions() const { return reinterpret_cast<uint32_t*>(plain); }
  // Per tile: the offset of its candidates in `positions`, and their number; from refine on, the number of candidates
  // in the tiles before it.
  DR_HD uint32_t* table() const { return reinterpret_cast<uint32_t*>(plain + at.table); }
  // The tile in which each slice begins.
  DR_HD uint32_t* slice() const { return reinterpret_cast<uint32_t*>(plain + at.slice); }
  // The values at `positions`, of a ranked unit. (Other units read them again: any element may be a candidate.)
  DR_HD Bits* noted() const { return reinterpret_cast<Bits*>(plain + at.noted); }
  DR_HD uint32_t* list() const { return reinterpret_cast<uint32_t*>(plain + at.list); }  // those of one bin
  DR_HD uint64_t* counts() const { return reinterpret_cast<uint64_t*>(plain + at.counts); }
};

// ---- Values -----------------------------------------------------------------------------------------------

// Bits: uint32_t for f32; uint16_t for f16 and bf16, whose order is the same.
template <class Bits>
inline constexpr Bits magnitude_mask = static_cast<Bits>(Bits(~Bits{0}) >> 1);
template <class Bits>
inline constexpr uint32_t key_bits = 8 * sizeof(Bits) - 1;
template <class Bits>
DR_HD constexpr uint32_t key_of(Bits b) {
  return b & static_cast<Bits>(Bits(~Bits{0}) >> 1);
}

struct alignas(16) vector16 {
  uint32_t word[4];
};
template <class T>
DR_HD T element_of(const vector16& x, uint32_t i) {
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<T>(x.word[i]);
  else
    return static_cast<T>(x.word[i / 2] >> (i % 2 * 16));
}

template <class Bits>
DR_HD float number_of(const select_common& c, Bits b) {
  if constexpr (sizeof(Bits) == 4)
    return f32_type::to_f32(b);
  else
    return c.dtype == DR_F16 ? f16_to_f32(b) : bf16_to_f32(b);
}
// The accumulator of feedback, in f32; and in the tensor's type.
template <class Bits>
DR_HD float accumulated(const select_common& c, float residual, Bits g) {
  return accumulated(c.gamma, number_of(c, g), c.beta, residual);
}
template <class Bits>
DR_HD Bits rounded_value(const select_common& c, float acc) {
  if constexpr (sizeof(Bits) == 4)
    return rounded_finite<f32_type>(acc);
  else
    return c.dtype == DR_F16 ? rounded_finite<f16_type>(acc) : rounded_finite<bf16_type>(acc);
}

// Elements of a unit that are contiguous in memory: all of them, or those of one tensor of a bucket.
struct unit_run {
  const void* values;
  float* residual;
  uint32_t first, n;  // first: its position in the unit

  DR_HD static unit_run all(const select_unit& u) { return {u.values, u.residual, 0, u.d}; }
  DR_HD static unit_run of(const flat_piece& p) { return {p.values, p.residual, p.first, (&p)[1].first - p.first}; }
  // That of a tile of the read; `tile` becomes its tile in the run.
  DR_HD static unit_run of_tile(const select_unit& u, uint32_t& tile) {
    if (!u.flat()) return all(u);
    const flat_piece& p = u.bucket().of_tile(tile);
    tile -= p.first_tile;
    return of(p);
  }
  // The run of an element of the unit.
  DR_HD static unit_run at(const select_unit& u, uint32_t element) {
    return u.flat() ? of(u.bucket().at(element)) : all(u);
  }
};
// Calls f(run, begin, end) for the runs of the elements [begin, end), which are not empty, and their parts in there.
template <class F>
DR_HD void each_run(const select_unit& u, uint32_t begin, uint32_t end, F&& f) {
  if (!u.flat()) return f(unit_run::all(u), begin, end);
  for (const flat_piece* p = &u.bucket().at(begin); p->first < end; ++p)
    f(unit_run::of(*p), begin > p->first ? begin : p->first, end < p[1].first ? end : p[1].first);
}

// What a tile of the read takes from memory: calls f(from, bytes). (Where a bucket's tensors are is only known to the
// device.)
template <class Bits, class F>
DR_HD void each_ahead_of(const select_unit& u, uint32_t tile, F&& f) {
  if (u.flat()) return;
  const uint32_t shift = tile_shift(u.width);
  const uint64_t skew = u.width == 1 ? reinterpret_cast<uintptr_t>(u.values) % 16 / sizeof(Bits) : 0;
  const uint64_t from = uint64_t{tile} << shift, end = ((uint64_t{tile} + 1) << shift) - skew;
  const uint64_t first = from > skew ? from - skew : 0;
  if (first >= u.d) return;  // the last tile, where the values are aligned
  const uint64_t n = (end < u.d ? end : u.d) - first;
  f(static_cast<const Bits*>(u.values) + first * u.width, n * u.width * sizeof(Bits));
  if (u.residual) f(u.residual + first * u.width, n * u.width * sizeof(float));
}

// Element i of a run after the read, when the residual holds the accumulator.
template <class Bits>
DR_HD Bits stored(const select_common& c, const unit_run& r, uint64_t i) {
  return r.residual ? rounded_value<Bits>(c, r.residual[i]) : static_cast<const Bits*>(r.values)[i];
}
template <class Bits>
DR_HD Bits stored(const select_common& c, const select_unit& u, uint32_t i) {
  const unit_run r = unit_run::at(u, i);
  return stored<Bits>(c, r, i - r.first);
}

// (If the support is replaced, other values than the selected ones are sent, which are validated when they are gathered.)
DR_HD inline void judge_selected(const select_common& c, const select_unit& u, uint32_t key, uint64_t at) {
  if (key >= c.infinity && u.flags & select_needs_finite) refuse_value(u.row, at);
}
// The k-th selected value.
template <class Bits>
DR_HD void keep(const select_common& c, const select_unit& u, uint64_t k, uint32_t position, Bits value) {
  if (k >= u.count_max) return;
  u.support[k] = position;
  static_cast<Bits*>(u.selected)[k] = value;
  judge_selected(c, u, key_of(value), k);
}
DR_HD inline void tell_count(const select_unit& u, uint64_t count) {
  u.row->count = count < u.count_max ? count : u.count_max;
  u.row->support_count = u.row->count;
}
// More are selected than are listed.
DR_HD inline void tell_unlisted(const select_unit& u, uint64_t count) {
  u.row->unlisted = count;
  u.row->count = u.row->support_count = 0;
}

}  // namespace dr
