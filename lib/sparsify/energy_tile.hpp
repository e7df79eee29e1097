// Blocks of contiguous elements on a GPU: their energies, of which the largest are selected as values are; then the
// elements of the blocks that were selected.
#pragma once

#include <cstdint>

#include "sparsify/select_rank_tile.hpp"

namespace dr {

inline constexpr uint32_t energy_tile = 2048;  // elements a block of the grid: whole blocks of every size

// Where the elements of a row are that is selected by blocks.
struct block_source {
  const void* values;
  float* residual;         // or NULL
  const flat_table* flat;  // of a bucket, in place of both; otherwise NULL
  uint32_t d;
  uint8_t dtype, shift, needs_finite, reserved;  // shift: log2 of a block's elements

  // The elements around one that are contiguous in memory.
  DR_HD unit_run at(uint32_t element) const {
    return flat ? unit_run::of(flat->at(element)) : unit_run{values, residual, 0, d};
  }
};

struct energies_job {
  block_source from;
  float* energies;  // of all blocks
  const device_row* row;
  device_row* selected;  // the row of a selection of blocks; it has the fault of `row`
  uint32_t first_tile;
  float beta, gamma;  // of feedback
};
static_assert(sizeof(energies_job) <= 80);

// Reads a tensor once: with feedback the residual becomes the sum.
template <size_t N>
struct find_energies {
  static constexpr const char* name = "find_energies";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles;
    energies_job job[N];
  };
  struct shared {
    float square[bank_place(energy_tile)];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const energies_job& j = job_of_tile(a, b.index());
    const uint32_t tile = b.index() - j.first_tile, begin = tile * energy_tile;
    const uint32_t n = j.from.d - begin < energy_tile ? j.from.d - begin : energy_tile;
    if (const dr_status code = j.row->fault.code; code != DR_OK) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && tile == 0) raise(&j.selected->fault, code, DR_STREAM_NONE, 0, 0);
      });
      return;
    }
    b.phase([&](unsigned lane) {
      if (j.from.dtype == DR_F32)
        square<f32_type>(s, j, begin, n, lane);
      else if (j.from.dtype == DR_F16)
        square<f16_type>(s, j, begin, n, lane);
      else
        square<bf16_type>(s, j, begin, n, lane);
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i << j.from.shift < n; i += lanes)
        j.energies[(begin >> j.from.shift) + i] = energy(s.square, i << j.from.shift, j.from.shift);
    });
  }

  // A lane issues all its loads before it computes.
  template <class T>
  DR_HD static void square(shared& s, const energies_job& j, uint32_t begin, uint32_t n, unsigned lane) {
    using bits = typename T::bits;
    constexpr uint32_t own = energy_tile / lanes;
    bits value[own];
    float* place[own];
#pragma unroll
    for (uint32_t k = 0; k < own; ++k) {
      const uint32_t i = k * lanes + lane;
      value[k] = 0;
      place[k] = nullptr;
      if (i >= n) continue;
      const unit_run r = j.from.at(begin + i);
      const uint32_t at = begin + i - r.first;
      value[k] = static_cast<const bits*>(r.values)[at];
      if (r.residual) place[k] = r.residual + at;
    }
#pragma unroll
    for (uint32_t k = 0; k < own; ++k) {
      if (place[k]) {
        const float acc = accumulated(j.gamma, T::to_f32(value[k]), j.beta, *place[k]);
        *place[k] = acc;
        value[k] = rounded_finite<T>(acc);
      }
      const float x = T::to_f32(value[k]);
      s.square[bank_place(k * lanes + lane)] = x * x;  // 0 where a short block has no element
    }
  }

  // The order of the additions of energy_kernel.hpp: halves are added, so the last sum is of the even elements and of the
  // odd ones, each added by halves.
  template <uint32_t n>
  DR_HD static float sum(const float* square, uint32_t first, uint32_t step) {
    if constexpr (n == 1)
      return square[bank_place(first)];
    else
      return sum<n / 2>(square, first, 2 * step) + sum<n / 2>(square, first + step, 2 * step);
  }
  DR_HD static float energy(const float* square, uint32_t first, uint32_t shift) {
    switch (shift) {
      case 0: return computed(sum<1>(square, first, 1));
      case 1: return computed(sum<2>(square, first, 1));
      case 2: return computed(sum<4>(square, first, 1));
      case 3: return computed(sum<8>(square, first, 1));
      case 4: return computed(sum<16>(square, first, 1));
      default: return computed(sum<32>(square, first, 1));
    }
  }
};

struct take_job {
  block_source from;
  const uint32_t* blocks;  // ascending
  uint32_t* support;       // of elements, and their values
  void* values;
  device_row *row, *selected;  // selected: of the selection of blocks
  uint32_t count_max;          // elements
  uint32_t first_tile;
};
static_assert(sizeof(take_job) == 80);

// Lists the elements of the selected blocks, with their values. The last block of the row may be short.
template <size_t N>
struct take_blocks {
  static constexpr const char* name = "take_blocks";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles;
    take_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const take_job& j = job_of_tile(a, b.index());
    // (The fault of the row itself is not tested: other blocks of this launch may raise it.)
    if (j.selected->fault.code != DR_OK || j.selected->count == 0) return;
    const uint64_t blocks = j.selected->count, begin = uint64_t{b.index() - j.first_tile} * row_tile;
    const uint64_t end = (uint64_t{j.blocks[blocks - 1]} + 1) << j.from.shift;
    const uint64_t all = (blocks << j.from.shift) - (end > j.from.d ? end - j.from.d : 0);
    const uint64_t count = all < j.count_max ? all : j.count_max;
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0) j.row->count = j.row->support_count = count;
      if (j.from.dtype == DR_F32)
        take<f32_type>(j, begin, count, lane);
      else if (j.from.dtype == DR_F16)
        take<f16_type>(j, begin, count, lane);
      else
        take<bf16_type>(j, begin, count, lane);
    });
  }

  template <class T>
  DR_HD static void take(const take_job& j, uint64_t begin, uint64_t count, unsigned lane) {
    using bits = typename T::bits;
    constexpr uint32_t own = row_tile / lanes;
    uint32_t element[own];
    bits value[own];
#pragma unroll
    for (uint32_t k = 0; k < own; ++k) {
      const uint64_t i = begin + k * lanes + lane;
      element[k] = i < count ? (j.blocks[i >> j.from.shift] << j.from.shift) +
                                   (static_cast<uint32_t>(i) & ((1u << j.from.shift) - 1))
                             : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < own; ++k) {
      value[k] = 0;
      if (begin + k * lanes + lane >= count) continue;
      const unit_run r = j.from.at(element[k]);
      const uint32_t at = element[k] - r.first;
      value[k] = r.residual ? rounded_finite<T>(r.residual[at]) : static_cast<const bits*>(r.values)[at];
    }
#pragma unroll
    for (uint32_t k = 0; k < own; ++k) {
      const uint64_t i = begin + k * lanes + lane;
      if (i >= count) continue;
      j.support[i] = element[k];
      static_cast<bits*>(j.values)[i] = value[k];
      if (j.from.needs_finite && !is_finite<T>(value[k])) refuse_value(j.row, i);
    }
  }
};

}  // namespace dr
