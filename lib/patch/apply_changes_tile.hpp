// A patch at its receiver on a GPU: its check against the base and against the result, and the assignment.
#pragma once

#include <cstdint>

#include "patch/chunk_sums_tile.hpp"
#include "primitive/ascending.hpp"
#include "primitive/block.hpp"
#include "primitive/decoded_tile.hpp"
#include "primitive/device_row.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint32_t based_tile = 4096;   // values of a base a block, of which supports know where they begin
inline constexpr uint32_t assign_tile = 1024;  // changes a block

// A decoded row of a patch, and its base.
struct based_row {
  const void* base;
  void* to;                 // the base to which it is assigned; NULL: the changes are handed over instead
  const uint32_t* support;  // not used in dense mode (device_row)
  const void* values;       // NULL: they are in the frame, as
  const uint8_t* frame;     // those in dense mode
  const uint32_t* starts;   // rows before every based_tile, and all of them
  device_row* row;
  uint64_t* checks;  // of the base and of what it becomes; zero when a call begins
  void* based;       // what the values at the support are in the base; NULL: nobody reads it
  uint32_t universe, support_max;
  uint32_t first_tile, first_assign;  // of the launches: by values of the base, by changes
  uint32_t size;                      // bytes of a value
  uint32_t reserved;

  DR_HD bool is_dense() const { return row->mode == mode_dense; }
  // The values that replace those of the base, of a row that is sound.
  DR_HD const void* replacing() const { return is_dense() || !values ? frame + row->offset : values; }
  DR_HD uint64_t changes() const {
    return is_dense() ? universe : row->support_count < support_max ? row->support_count : support_max;
  }
};
static_assert(sizeof(based_row) == 96);

// What the values at the support are in the base, for a value codec that reads them. The support is not validated yet.
struct gather_bases {
  static constexpr const char* name = "gather_bases";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const based_row* rows;
    uint32_t n;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const based_row& d = last_where(a.rows, a.n, [&](const based_row& x) { return x.first_assign <= b.index(); });
    if (!d.based || d.is_dense() || d.row->fault.code != DR_OK) return;
    const uint64_t begin = uint64_t{b.index() - d.first_assign} * assign_tile;
    const word_run base = word_run::of(d.base, d.universe, d.size);
    b.phase([&](unsigned lane) {
#pragma unroll
      for (uint32_t k = 0; k < assign_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= d.changes()) continue;
        const uint32_t at = d.support[i], bits = at < d.universe ? base.value(at) : 0;
        if (d.size == 4)
          static_cast<uint32_t*>(d.based)[i] = bits;
        else
          static_cast<uint16_t*>(d.based)[i] = static_cast<uint16_t>(bits);
      }
    });
  }
};

// Reads every base once. The last block compares the checks with those of the frame, closes the gate if one differs, and
// reports the result of the call.
struct check_bases {
  static constexpr const char* name = "check_bases";
  static constexpr unsigned lanes = patch_lanes, grid_phases = 1;
  struct args {
    const based_row* rows;
    const uint8_t* frame;  // 4-byte aligned
    uint32_t *closed, *done;
    uint32_t n, reserved;
    tell_decoded::args tells;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    // (Only the last block closes it in this launch, when all others have read it.)
    const bool open = b.template once<uint32_t>([&] { return *a.closed; }) == 0;
    if (open) sum(b, last_where(a.rows, a.n, [&](const based_row& x) { return x.first_tile <= b.index(); }));
    if (!last_of(b, a.done, b.blocks())) return;
    if (open) b.phase([&](unsigned lane) { compare(a, lane); });
    if (!a.tells.result) return;
    tell_decoded::tell(b, a.tells, b.template once<uint32_t>([&] { return atomic_or(a.closed, 0u); }) != 0);
  }

  template <class Block>
  DR_HD static void sum(Block& b, const based_row& d) {
    const uint32_t tile = b.index() - d.first_tile, tile_bytes = based_tile * d.size;
    const uint64_t begin = uint64_t{tile} * tile_bytes;
    const word_run base = word_run::of(d.base, d.universe, d.size);
    if (begin >= base.bytes) return;
    typename Block::template each<chunk_sums> sums;
    b.phase([&](unsigned lane) {
      const bool dense = d.is_dense();
      const word_run now = word_run::of(dense ? d.replacing() : d.base, d.universe, d.size);
      four_words x[chunks_together], y[chunks_together];
#pragma unroll
      for (uint32_t k = 0; k < chunks_together; ++k) {
        const uint64_t at = begin + k * chunk_size_bytes + sizeof(four_words) * lane;
        x[k] = y[k] = {};
        if (k * chunk_size_bytes < tile_bytes) x[k] = base.vector(at);
        if (k * chunk_size_bytes < tile_bytes && dense) y[k] = now.vector(at);
      }
      uint32_t factor[4];
      set_factors(lane, factor);
      chunk_sums own{};
#pragma unroll
      for (uint32_t k = 0; k < chunks_together; ++k) {
        if (k * chunk_size_bytes >= tile_bytes) continue;
        own.add(k, x[k], factor, lane, words_of_chunk(begin + k * chunk_size_bytes, base.bytes));
        if (dense) own.move(k, x[k], y[k], factor);
      }
      if (!dense) move_changes(d, base, tile, begin, own, lane);
      sums[lane] = own;
    });
    const chunk_sums all = b.sum(sums);
    b.phase([&](unsigned lane) {
      const uint64_t end = begin + tile_bytes;
      if (lane == 0) all.tell(begin, base.bytes < end ? base.bytes : end, d.checks);
    });
  }

  // Adds the changes in a tile to the sums of its chunks.
  DR_HD static void move_changes(const based_row& d, const word_run& base, uint32_t tile, uint64_t begin,
                                 chunk_sums& own, unsigned lane) {
    const uint64_t changes = d.changes();
    if (changes == 0) return;
    const word_run values = word_run::of(d.replacing(), changes, d.size);
    const uint64_t end = d.starts[tile + 1] < changes ? d.starts[tile + 1] : changes;
    for (uint64_t i = uint64_t{d.starts[tile]} + lane; i < end; i += lanes) {
      const uint32_t at = d.support[i];
      if (at >= d.universe || at / based_tile != tile) continue;
      own.move(static_cast<uint32_t>(uint64_t{at} * d.size - begin), base.value(at), values.value(i));
    }
  }

  DR_HD static void compare(const args& a, unsigned lane) {
    for (uint32_t i = lane; i < a.n; i += lanes) {
      const based_row& d = a.rows[i];
      const auto* const stored = reinterpret_cast<const uint32_t*>(a.frame + d.row->offset) - 4;  // before the sections
      const uint64_t base = uint64_t{stored[1]} << 32 | stored[0], result = uint64_t{stored[3]} << 32 | stored[2];
      const uint64_t here = atomic_add(d.checks, uint64_t{0}), becomes = atomic_add(d.checks + 1, uint64_t{0});
      if (here != base)
        raise(&d.row->fault, DR_E_ARGUMENT, DR_STREAM_NONE, base, here);
      else if (becomes != result)
        raise(&d.row->fault, DR_E_CORRUPT, DR_STREAM_NONE, 0, becomes);
      else
        continue;
      atomic_or(a.closed, 1u);
    }
  }
};

// Assigns the changes to the bases, if all checks agree.
struct assign_changes {
  static constexpr const char* name = "assign_changes";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const based_row* rows;
    const uint32_t* closed;
    uint32_t n, blocks;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (*a.closed) return;
    const based_row& d = last_where(a.rows, a.n, [&](const based_row& x) { return x.first_assign <= b.index(); });
    if (!d.to) return;
    const bool dense = d.is_dense();
    const uint64_t changes = d.changes();
    const uint32_t end = &d + 1 < a.rows + a.n ? (&d)[1].first_assign : a.blocks;
    const word_run values = word_run::of(d.replacing(), changes, d.size);
    // (A row in dense mode has more elements than its blocks cover.)
    const uint64_t step = uint64_t{end - d.first_assign} * assign_tile;
    b.phase([&](unsigned lane) {
      for (uint64_t begin = uint64_t{b.index() - d.first_assign} * assign_tile; begin < changes; begin += step)
#pragma unroll
        for (uint32_t k = 0; k < assign_tile / lanes; ++k) {
          const uint64_t i = begin + k * lanes + lane;
          if (i >= changes) continue;
          const uint64_t at = dense ? i : uint64_t{d.support[i]};
          if (at >= d.universe) continue;
          if (d.size == 4)
            static_cast<uint32_t*>(d.to)[at] = values.value(i);
          else
            static_cast<uint16_t*>(d.to)[at] = static_cast<uint16_t>(values.value(i));
        }
    });
  }
};

}  // namespace dr
