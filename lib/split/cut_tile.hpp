// A tensor that is selected as a whole, on a GPU: the part of the selection that is in each of its segments.
#pragma once

#include <cstdint>

#include "primitive/ascending.hpp"
#include "primitive/atomics.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/unlisted.hpp"
#include "primitive/value_type.hpp"

namespace dr {

enum cut_flags : uint8_t {
  cut_needs_finite = 1,  // a value that is not finite is a fault of the segment
  cut_sums = 2,          // `source` has the sums of feedback, in f32
  cut_first = 4,         // the first segment, which gets the tensor's fault, too
  cut_unlisted = 8       // the tensor may be unlisted (device_row); its rows are of one value
};

struct cut_job {
  const device_row* tensor;
  device_row* row;
  const uint32_t* positions;  // ascending, of the tensor; NULL: nothing is listed, and the row gets its state only
  const void* values;         // in rows of `width`
  uint32_t* support;          // the segment's: positions count from its first element
  void* selected;
  const void* source;  // cut_unlisted: the segment of what the tensor was selected from
  uint32_t first, universe, count_max;
  union {
    uint32_t width;
    uint32_t low;  // cut_unlisted: the smallest selected magnitude
  };
  uint32_t first_tile;
  uint8_t dtype, flags;
  uint16_t reserved;

  DR_HD uint32_t columns() const { return flags & cut_unlisted ? 1 : width; }
};
static_assert(sizeof(cut_job) == 80);

template <size_t N>
struct cut_rows {
  static constexpr const char* name = "cut_rows";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles;
    cut_job job[N];
  };
  struct shared {};
  struct part {
    uint64_t begin, end;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const cut_job& j = job_of_tile(a, b.index());
    const bool faulty = j.tensor->fault.code != DR_OK;
    const uint32_t tile = b.index() - j.first_tile;
    b.phase([&](unsigned lane) {
      if (tile == 0 && lane == 0) take_state(j);
    });
    // (After a fault the list may be uninitialised.)
    if (!j.positions || faulty) return;
    if (j.flags & cut_unlisted && j.tensor->unlisted) return count_unlisted(b, j, tile);
    const part p = b.template once<part>([&] {
      const uint64_t begin = lower_bound(j.positions, j.tensor->count, j.first);
      return part{begin,
                  begin + lower_bound(j.positions + begin, j.tensor->count - begin, uint64_t{j.first} + j.universe)};
    });
    const uint64_t all = p.end - p.begin, n = all < j.count_max ? all : j.count_max;
    b.phase([&](unsigned lane) {
      if (tile == 0 && lane == 0) j.row->count = j.row->support_count = n;
      for (uint32_t k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = uint64_t{tile} * row_tile + k * lanes + lane;
        if (i >= n) continue;
        j.support[i] = j.positions[p.begin + i] - j.first;
        copy(j, p.begin + i, i);
      }
    });
  }

 private:
  DR_HD static void take_state(const cut_job& j) {
    j.row->accumulates = j.tensor->accumulates;
    const dr_fault& f = j.tensor->fault;
    if (f.code == DR_OK || !(j.flags & cut_first)) return;
    j.row->not_finite = j.tensor->not_finite;
    raise(&j.row->fault, f.code, f.stream, f.where, f.what);
  }

  DR_HD static void copy(const cut_job& j, uint64_t from, uint64_t to) {
    for (uint32_t w = 0, width = j.columns(); w < width; ++w) {
      const uint64_t at = to * width + w;
      const uint32_t bits = load_bits(j.dtype, j.values, from * width + w);
      store_bits(j.dtype, j.selected, at, bits);
      if (j.flags & cut_needs_finite && !is_finite(j.dtype, bits)) refuse_value(j.row, at);
    }
  }

  // More are selected than are listed, so all segments are sent dense.
  template <class Block>
  DR_HD static void count_unlisted(Block& b, const cut_job& j, uint32_t tile) {
    const uint64_t tiles = ceil_div(j.count_max ? j.count_max : 1, row_tile);
    typename Block::template each<uint64_t> counts;
    b.phase([&](unsigned lane) {
      counts[lane] = 0;
      for (uint64_t i = uint64_t{tile} * lanes + lane; i < j.universe; i += tiles * lanes) {
        const uint32_t bits = j.flags & cut_sums ? bits_of_sum(j.dtype, static_cast<const float*>(j.source)[i])
                                                 : load_bits(j.dtype, j.source, i);
        counts[lane] += bits_from(j.dtype, bits, j.low) != 0;
      }
    });
    const uint64_t all = b.sum(counts);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      if (all) atomic_add(&j.row->unlisted, all);
      if (tile == 0) j.row->mode = mode_dense;
    });
  }
};

}  // namespace dr
