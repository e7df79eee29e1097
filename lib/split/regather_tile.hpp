// Between the streams, on a GPU: values at the support that decode will return.
#pragma once

#include <cstdint>

#include "primitive/ascending.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/flat_table.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t regather_tile = row_tile;  // elements a block

// The support that an index codec reported for a row; not stored in the row, because a support that is too large is not
// a fault of the row.
struct replaced_row {
  dr_fault fault;
  uint64_t count, size;
};

enum regather_flags : uint8_t {
  regather_from_source = 1,    // otherwise the selected values, followed by zeros
  regather_sparse = 2,         // the source is sparse: `values` at `support`
  regather_from_residual = 4,  // the source is the accumulator of feedback, in f32
  regather_needs_finite = 8
};

struct regather_job {
  const void* values;
  const void* selected;
  const uint32_t* support;
  uint32_t* reported;  // NULL: all elements
  void* sent;
  device_row* row;
  const replaced_row* replaced;  // NULL with all elements
  uint32_t width, reported_max, first_tile;
  uint8_t dtype, flags;
  uint16_t reserved;
  const flat_table* flat;  // of a bucket, in place of `values`; otherwise NULL
};
static_assert(sizeof(regather_job) == 80);

template <size_t N>
struct regather_values {
  static constexpr const char* name = "regather_values";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles;
    regather_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const regather_job& j = job_of_tile(a, b.index());
    // The row's fault is not tested: other blocks may raise it at the same time, and the first value that is not finite
    // must be found in any order of blocks. For a row with an earlier fault, this reads valid memory, and no step uses
    // the output.
    if (j.row->count == 0) return;
    const dr_status index = j.replaced ? j.replaced->fault.code : dr_status{DR_OK};
    // The support exceeds the plan's bound: raw keys are sent.
    const bool raw = index == DR_E_CAPACITY;
    const uint64_t listed = j.replaced ? j.replaced->count : j.reported_max;
    const uint64_t count = raw ? j.row->count : listed < j.reported_max ? listed : j.reported_max;
    const uint64_t begin = uint64_t{b.index() - j.first_tile} * regather_tile;
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0) {
        j.row->support_count = count;
        j.row->size[section_index] = j.replaced ? j.replaced->size : 0;
        if (raw) j.row->mode = mode_raw_index;
        if (index != DR_OK && !raw)
          raise(&j.row->fault, index, DR_STREAM_INDEX, j.replaced->fault.where, j.replaced->fault.what);
      }
      for (unsigned k = 0; k < regather_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= count || i >= j.reported_max) continue;
        if (raw) j.reported[i] = j.support[i];
        copy_row(j, j.reported, i);
      }
    });
  }

  DR_HD static void copy_row(const regather_job& j, const uint32_t* support, uint64_t i) {
    if (j.dtype == DR_F32) return copy_typed<f32_type>(j, support, i);
    if (j.dtype == DR_F16) return copy_typed<f16_type>(j, support, i);
    return copy_typed<bf16_type>(j, support, i);
  }

  template <class T>
  DR_HD static void copy_typed(const regather_job& j, const uint32_t* support, uint64_t i) {
    using bits = typename T::bits;
    uint64_t from = i;
    bool there = i < j.row->count;
    const void* values = j.values;
    if (j.flags & regather_from_source) {
      const uint32_t element = support ? support[i] : static_cast<uint32_t>(i);
      from = element;
      if (j.flat) {
        const flat_piece& p = j.flat->at(element);
        from -= p.first;
        values = j.flags & regather_from_residual ? p.residual : p.values;
      }
      there = true;
      if (j.flags & regather_sparse) {
        from = lower_bound(j.support, j.row->count, element);
        there = from < j.row->count && j.support[from] == element;
      }
    }
    for (uint32_t w = 0; w < j.width; ++w) {
      const uint64_t at = from * j.width + w;
      bits value = 0;
      if (there && !(j.flags & regather_from_source)) {
        value = static_cast<const bits*>(j.selected)[at];
      } else if (there && j.flags & regather_from_residual) {
        // Equal to rounded_finite, which needs more registers than are available.
        const double acc = exact_f64(static_cast<const float*>(values)[at]);
        value = T::from_f64(is_finite<f32_type>(static_cast<const uint32_t*>(values)[at]) ? saturate<T>(acc) : acc);
      } else if (there) {
        value = static_cast<const bits*>(values)[at];
      }
      static_cast<bits*>(j.sent)[i * j.width + w] = value;
      if (j.flags & regather_needs_finite && !is_finite<T>(value)) refuse_value(j.row, i * j.width + w);
    }
  }
};

}  // namespace dr
