// From decoded rows to gradients on a GPU: supports are checked, values put or added in the order of the frames.
#pragma once

#include <cstdint>

#include "merge/merge_kernel.hpp"
#include "primitive/ascending.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t merge_tile = 4096;  // values of an output a block

// A decoded row. Uploaded once a call.
struct merge_row {
  const uint32_t* support;  // NULL in dense mode, as the row says
  const void* values;
  const void* dense;  // values of a row in dense mode
  const device_row* row;
  uint32_t universe, width;
  uint32_t told_max;
  uint32_t first_tile;  // of launches over rows
  float weight;
  uint8_t dtype, reserved[3];
};
static_assert(sizeof(merge_row) == 56);

// Where rows go: an output's part that one row of every frame covers.
struct merge_out {
  void* values;
  uint64_t elements;  // universe · width
  uint32_t first_tile;
  uint8_t dtype, reserved[3];
};

struct gate_state {
  uint32_t failed;  // some row of some frame is not sound
  uint32_t done;
};

DR_HD inline bool is_dense(const merge_row& m) { return m.row->mode == mode_dense; }
DR_HD inline uint64_t rows_told(const merge_row& m) {
  return is_dense(m) ? m.universe : m.row->told < m.told_max ? m.row->told : m.told_max;
}

template <class Block>
DR_HD uint32_t row_of_tile(Block& b, const merge_row* rows, uint32_t n, uint32_t tile) {
  typename Block::template each<uint32_t> before;
  b.phase([&](unsigned lane) {
    before[lane] = 0;
    for (uint32_t i = lane; i < n; i += Block::lanes) before[lane] += rows[i].first_tile <= tile;
  });
  return b.sum(before) - 1;
}

// Supports ascend below their universe, and no row has a fault; otherwise the gate closes, and nothing that follows
// writes.
struct judge_supports {
  static constexpr const char* name = "judge_supports";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* rows;
    device_row* states;
    gate_state* gate;
    uint32_t n;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t row = row_of_tile(b, a.rows, a.n, b.index());
    const merge_row& m = a.rows[row];
    device_row& r = a.states[row];
    const uint64_t told = r.mode == mode_dense ? 0 : rows_told(m),
                   begin = uint64_t{b.index() - m.first_tile} * row_tile;
    b.phase([&](unsigned lane) {
      bool bad = lane == 0 && r.fault.code != DR_OK;
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= told) continue;
        if (ascends(m.support, i, m.universe)) continue;
        raise(&r.fault, DR_E_CORRUPT, DR_STREAM_INDEX, i, m.support[i]);
        bad = true;
      }
      if (bad) atomic_or(&a.gate->failed, 1u);
    });
  }
};

// out[support[i]] += weight · value, in f32, rounded to the output's type: the rows of one frame, whose places are its
// own.
struct add_rows {
  static constexpr const char* name = "add_rows";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* rows;
    const merge_out* outs;
    const gate_state* gate;
    uint32_t n;
    uint32_t tile_base;  // first_tile counts from here
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (a.gate->failed) return;
    const uint32_t tile = b.index() + a.tile_base, row = row_of_tile(b, a.rows, a.n, tile);
    const merge_row& m = a.rows[row];
    const merge_out& o = a.outs[row];
    const bool dense = is_dense(m);
    const void* const values = dense ? m.dense : m.values;
    const uint64_t told = rows_told(m),
                   tiles = (row + 1 < a.n ? a.rows[row + 1].first_tile : b.blocks() + a.tile_base) - m.first_tile;
    b.phase([&](unsigned lane) {
      // A row in dense mode has more elements than its tiles were made for.
      for (uint64_t i = uint64_t{tile - m.first_tile} * lanes + lane; i < told; i += tiles * lanes)
        for (uint32_t w = 0; w < m.width; ++w) {
          const uint64_t at = (dense ? i : uint64_t{m.support[i]}) * m.width + w;
          if (at >= o.elements) continue;
          const float sum =
              weighted_sum(value_at(o.dtype, o.values, at), m.weight, value_at(m.dtype, values, i * m.width + w));
          store_bits(o.dtype, o.values, at, bits_of(o.dtype, sum));
        }
    });
  }
};

// Sum of many frames, or one frame into a fresh output: a tile of the output is held in shared memory, the frames'
// parts of it are added in the order of the frames.
struct merge_tiles {
  static constexpr const char* name = "merge_tiles";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* rows;  // [frames][outs]
    const merge_out* outs;
    const gate_state* gate;
    uint32_t n, frames;
    uint32_t adds;    // to the outputs' contents; otherwise from +0
    uint32_t copies;  // one frame, no arithmetic: bit for bit if the types are the same
  };
  struct shared {
    uint32_t bits[merge_tile];
    uint32_t begin[lanes], end[lanes];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    if (a.gate->failed) return;
    typename Block::template each<uint32_t> before;
    b.phase([&](unsigned lane) {
      before[lane] = 0;
      for (uint32_t i = lane; i < a.n; i += lanes) before[lane] += a.outs[i].first_tile <= b.index();
    });
    const uint32_t out = b.sum(before) - 1;
    const merge_out& o = a.outs[out];
    const uint64_t first = uint64_t{b.index() - o.first_tile} * merge_tile;
    const uint32_t length = o.elements - first < merge_tile ? static_cast<uint32_t>(o.elements - first) : merge_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < length; i += lanes) s.bits[i] = a.adds ? load_bits(o.dtype, o.values, first + i) : 0;
    });
    for (uint32_t group = 0; group < a.frames; group += lanes) {
      const uint32_t frames = a.frames - group < lanes ? a.frames - group : lanes;
      // Where each frame's part of the tile begins and ends.
      b.phase([&](unsigned lane) {
        if (lane >= frames) return;
        const merge_row& m = a.rows[uint64_t{group + lane} * a.n + out];
        s.begin[lane] = lower_row(m, first / m.width);
        s.end[lane] = lower_row(m, (first + length - 1) / m.width + 1);
      });
      for (uint32_t f = 0; f < frames; ++f) {
        const merge_row& m = a.rows[uint64_t{group + f} * a.n + out];
        b.phase([&](unsigned lane) { add_part(s, a, m, o, first, length, s.begin[f], s.end[f], lane); });
      }
    }
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < length; i += lanes) store_bits(o.dtype, o.values, first + i, s.bits[i]);
    });
  }

  // Rows of m below element `wanted`.
  DR_HD static uint32_t lower_row(const merge_row& m, uint64_t wanted) {
    const uint64_t n = rows_told(m);
    if (is_dense(m)) return static_cast<uint32_t>(wanted < n ? wanted : n);
    return static_cast<uint32_t>(lower_bound(m.support, n, wanted));
  }

  DR_HD static void add_part(shared& s, const args& a, const merge_row& m, const merge_out& o, uint64_t first,
                             uint32_t length, uint32_t begin, uint32_t end, unsigned lane) {
    const bool dense = is_dense(m);
    const void* const values = dense ? m.dense : m.values;
    for (uint32_t i = begin + lane; i < end; i += lanes)
      for (uint32_t w = 0; w < m.width; ++w) {
        const uint64_t at = (dense ? i : uint64_t{m.support[i]}) * m.width + w, from = uint64_t{i} * m.width + w;
        if (at < first || at >= first + length) continue;
        uint32_t& bits = s.bits[at - first];
        if (a.copies)
          bits = bits_as(m.dtype, values, from, o.dtype);
        else
          bits = bits_of(o.dtype, weighted_sum(value_of(o.dtype, bits), m.weight, value_at(m.dtype, values, from)));
      }
  }
};

// A row as a sparse output: indices of a framework's type and values. One row.
struct hand_over_row {
  static constexpr const char* name = "hand_over_row";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const merge_row* row;
    const gate_state* gate;
    void* indices;
    void* values;
    uint64_t capacity, first;
    uint32_t index_dtype, dtype;
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (a.gate->failed) return;
    const merge_row& m = *a.row;
    const bool dense = is_dense(m);
    const void* const values = dense ? m.dense : m.values;
    const uint64_t told = rows_told(m) < a.capacity ? rows_told(m) : a.capacity;
    b.phase([&](unsigned lane) {
      for (uint64_t i = uint64_t{b.index()} * lanes + lane; i < told; i += uint64_t{b.blocks()} * lanes) {
        const uint64_t index = a.first + (dense ? i : m.support[i]);
        store_index(a.index_dtype, a.indices, i, index);
        for (uint32_t w = 0; w < m.width; ++w) {
          const uint64_t at = i * m.width + w;
          store_bits(a.dtype, a.values, at, bits_as(m.dtype, values, at, a.dtype));
        }
      }
    });
  }
};

}  // namespace dr
