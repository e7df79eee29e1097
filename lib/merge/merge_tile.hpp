// From decoded rows to gradients on a GPU: checks supports, adds the values of one frame (several frames:
// merge_many_tile.hpp) or returns them sparse.
#pragma once

#include <cstdint>

#include "merge/merge_kernel.hpp"
#include "primitive/ascending.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/decoded_tile.hpp"
#include "primitive/device_row.hpp"
#include "primitive/lookback.hpp"
#include "primitive/support_starts.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// A decoded row. Uploaded once a call.
struct merge_row {
  const uint32_t* support;  // not used of a row that has_all
  const void* values;       // NULL: they are in the frame, as
  const uint8_t* frame;     // those of a row in dense mode
  const device_row* row;
  uint32_t* starts;  // rows before every merge_tile of the output, and all rows; NULL: not needed
  uint32_t universe, width;
  uint32_t support_max;
  uint32_t first_tile;  // of launches over rows
  float weight;
  uint8_t dtype;
  uint8_t whole;  // the support is the universe, unless the keys are raw
  uint8_t lists;  // its support has been checked, and `starts` listed: by its codec; raw keys by unpack_frames
  uint8_t reserved;
};
static_assert(sizeof(merge_row) == 64);

struct gate_state {
  uint32_t failed;  // some row of some frame is not sound
  uint32_t done;
};

DR_HD inline bool is_dense(const merge_row& m) { return m.row->mode == mode_dense; }
// Whether value i is that of row i of the universe.
DR_HD inline bool has_all(const merge_row& m) {
  return m.row->mode == mode_dense || (m.whole && m.row->mode == mode_plan);
}
// Whether judge_supports has nothing to find in the support of a row that is sound.
DR_HD inline bool is_known(const merge_row& m) { return has_all(m) || m.lists; }
// The values of a row that is sound.
DR_HD inline const void* values_of(const merge_row& m) {
  return is_dense(m) || !m.values ? m.frame + m.row->offset : m.values;
}
DR_HD inline uint64_t support_rows(const merge_row& m) {
  return is_dense(m) ? m.universe : m.row->support_count < m.support_max ? m.row->support_count : m.support_max;
}

template <class Block>
DR_HD uint32_t row_of_tile(Block& b, const merge_row* rows, uint32_t n, uint32_t tile) {
  if (n == 1) return 0;
  typename Block::template each<uint32_t> before;
  b.phase([&](unsigned lane) {
    before[lane] = 0;
    for (uint32_t i = lane; i < n; i += Block::lanes) before[lane] += rows[i].first_tile <= tile;
  });
  return b.sum(before) - 1;
}

// Checks that supports ascend below their universe, unless that is known, and that no row has a fault; otherwise the gate
// closes, and no later launch writes. Finds the beginning of the output's tiles in every such support, too. The last block
// reports the result.
struct judge_supports {
  static constexpr const char* name = "judge_supports";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t tiles_if_listed = 8;
  struct args {
    const merge_row* rows;
    device_row* states;
    gate_state* gate;
    uint32_t n;
    uint32_t all_tiles, tiles_a_block;
    tell_decoded::args tells;
    row_tiles tiles;
  };
  struct shared {
    alignas(16) uint32_t support[row_tile];
    uint32_t before;
  };
  struct view {  // read by one lane for all: other blocks may raise a fault at any time
    uint64_t rows;
    uint32_t sound, known;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const uint64_t first = uint64_t{b.index()} * a.tiles_a_block, end = first + a.tiles_a_block;
    for (uint64_t tile = first; tile < end && tile < a.all_tiles; ++tile)
      run_tile(b, s, a, static_cast<uint32_t>(tile));
    if (!a.tells.result || !last_of(b, &a.gate->done, b.blocks())) return;
    tell_decoded::tell(b, a.tells, a.gate->failed);
  }

  template <class Block>
  DR_HD static void run_tile(Block& b, shared& s, const args& a, uint32_t tile) {
    const uint32_t row = row_of_tile(b, a.rows, a.n, tile);
    const merge_row& m = a.rows[row];
    device_row& r = a.states[row];
    const view v = b.template once<view>([&] { return view{support_rows(m), r.fault.code == DR_OK, is_known(m)}; });
    const uint64_t begin = uint64_t{tile - m.first_tile} * row_tile;
    // After a codec's failure its output is not read: it may be uninitialised.
    if (!v.sound)
      b.phase([&](unsigned lane) {
        if (lane == 0) atomic_or(&a.gate->failed, 1u);
      });
    else if (!v.known && (begin == 0 || begin < v.rows))
      judge(b, s, a, m, r, v.rows, begin);
  }

  template <class Block>
  DR_HD static void judge(Block& b, shared& s, const args& a, const merge_row& m, device_row& r, uint64_t rows,
                          uint64_t begin) {
    const uint32_t n = rows - begin < row_tile ? static_cast<uint32_t>(rows - begin) : row_tile;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / (4 * lanes); ++k) {
        const uint32_t i = 4 * (k * lanes + lane);
        *reinterpret_cast<four_words*>(s.support + i) = load_four(m.support, begin + i, rows);
      }
      if (lane == 0) s.before = begin ? m.support[begin - 1] : 0;
    });
    b.phase([&](unsigned lane) {
      bool bad = false;
      for (uint32_t i = lane; i < n; i += lanes) {
        const uint32_t x = s.support[i];
        if (x < m.universe && (begin + i == 0 || (i ? s.support[i - 1] : s.before) < x)) continue;
        raise(&r.fault, DR_E_CORRUPT, DR_STREAM_INDEX, begin + i, x);
        bad = true;
      }
      if (bad) atomic_or(&a.gate->failed, 1u);
      if (m.starts)
        support_starts{m.starts, m.universe, m.width, a.tiles}.list(s.support, n, begin, s.before, begin + n == rows,
                                                                    lane, lanes);
    });
  }
};

// By which a launch knows whether decoded rows may be delivered.
struct delivery_gate {
  const gate_state* closed_by = nullptr;  // by judge_supports, or who else closes it
  // Of few rows, whose supports are checked already, each block looks at the faults itself.
  const device_row* rows = nullptr;
  uint32_t n = 0;  // at most a block's lanes; 0: not so

  template <class Block>
  DR_HD bool is_closed(Block& b) const {
    if (n == 0) return closed_by->failed;
    typename Block::template each<uint32_t> bad;
    b.phase([&](unsigned lane) { bad[lane] = lane < n && rows[lane].fault.code != DR_OK; });
    return b.max(bad);
  }
};

// out[support[i]] += weight · value, in f32, rounded to the output's type: for the rows of one frame, whose positions
// are distinct.
struct add_rows {
  static constexpr const char* name = "add_rows";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t parts = row_tile / lanes;  // blocks of a tile: a lane waits for one access to memory
  struct args {
    const merge_row* rows;
    const merge_out* outs;
    delivery_gate gate;
    uint32_t n;
    uint32_t tile_base;  // first_tile counts from here
    uint32_t cuts;       // outputs that are parts of the one row; 0: each is its row's
    uint32_t restores;   // residuals: without the weights; a sum that is not finite becomes 0, as after an encode
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const uint32_t tile = b.index() / parts + a.tile_base, row = row_of_tile(b, a.rows, a.n, tile);
    const merge_row& m = a.rows[row];
    merge_out o = a.outs[row];  // loaded with the row; of outputs that are its parts, the one of an element
    const bool all = has_all(m);
    const void* const values = values_of(m);
    const uint64_t rows = support_rows(m);
    const uint32_t first = (m.first_tile - a.tile_base) * parts,
                   end = row + 1 < a.n ? (a.rows[row + 1].first_tile - a.tile_base) * parts : b.blocks();
    if (a.gate.is_closed(b)) return;
    b.phase([&](unsigned lane) {
      // A row in dense mode has more elements than its tiles cover.
      for (uint64_t i = uint64_t{b.index() - first} * lanes + lane; i < rows; i += uint64_t{end - first} * lanes)
        for (uint32_t w = 0; w < m.width; ++w) {
          uint64_t at = (all ? i : uint64_t{m.support[i]}) * m.width + w;
          const float value = value_at(m.dtype, values, i * m.width + w);
          if (a.cuts) o = out_of_element(a.outs, a.cuts, at);
          at -= o.first;
          if (at >= o.elements) continue;
          float sum = weighted_sum(value_at(o.dtype, o.values, at), a.restores ? 1 : m.weight, value);
          if (a.restores && !is_finite<f32_type>(std::bit_cast<uint32_t>(sum))) sum = 0;
          store_bits(o.dtype, o.values, at, bits_of(o.dtype, sum));
        }
    });
  }
};

// Writes one row to a sparse output: indices of a framework's type, and values. A segment's follow those of the segments
// before it.
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
    uint32_t before;  // segments of its tensor before it
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    if (a.gate->failed) return;
    const merge_row& m = *a.row;
    const bool all = has_all(m);
    const void* const values = values_of(m);
    const uint64_t to = a.before ? rows_before(b, a) : 0, room = a.capacity > to ? a.capacity - to : 0;
    const uint64_t rows = support_rows(m) < room ? support_rows(m) : room;
    b.phase([&](unsigned lane) {
      for (uint64_t i = uint64_t{b.index()} * lanes + lane; i < rows; i += uint64_t{b.blocks()} * lanes) {
        const uint64_t index = a.first + (all ? i : m.support[i]);
        store_index(a.index_dtype, a.indices, to + i, index);
        for (uint32_t w = 0; w < m.width; ++w) {
          const uint64_t at = i * m.width + w;
          store_bits(a.dtype, a.values, to * m.width + at, bits_as(m.dtype, values, at, a.dtype));
        }
      }
    });
  }

  template <class Block>
  DR_HD static uint64_t rows_before(Block& b, const args& a) {
    typename Block::template each<uint64_t> rows;
    b.phase([&](unsigned lane) {
      rows[lane] = 0;
      for (uint32_t i = 1 + lane; i <= a.before; i += lanes) rows[lane] += support_rows(*(a.row - i));
    });
    return b.sum(rows);
  }
};

}  // namespace dr
