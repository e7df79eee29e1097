// Selection on a GPU (select_tile.hpp): the host's launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "deepreduce/codec.h"
#include "primitive/device_row.hpp"
#include "primitive/flat_table.hpp"

namespace dr {

// One tensor. Addresses are of the device.
struct device_select_job {
  // whole: all elements, of which those that are not zero are counted; there is no support.
  enum kind_t : uint32_t { nonzero, largest, from, adopt, chance, chunks, whole };

  const void* values;      // dense: [d] rows of `width`; sparse (adopt): [entries] rows
  const flat_table* flat;  // of a bucket: where its tensors are, in place of `values`,
  uint32_t flat_tiles;     // and the sum of their flat_tiles_of; 0: it is no bucket
  uint64_t d;              // below 2^32
  uint32_t dtype, width;
  kind_t kind;
  uint64_t target;               // largest, chance: their number
  bool solved;                   // largest: one block selects all (solve_most)
  const uint64_t* key;           // chance: the tensor's shared key, in device memory,
  uint64_t key_part;             // and what is combined with it
  uint32_t chunk, chunk_target;  // chunks: elements of a whole one, and how many of them are selected
  uint32_t block;    // largest: 0; or the elements of blocks, of which it has the energies (energy_tile.hpp)
  double threshold;  // from: |v| >= threshold, never zeros;
  uint64_t dense_above = UINT64_MAX;  // if more are selected, none is listed: the row's `unlisted` is their number
  const void*
      indices;  // adopt: strictly ascending, below d, otherwise an ARGUMENT fault of the row; `values` are used in place
  uint32_t index_dtype;
  uint64_t entries;
  // Feedback (width 1): the source of the selection is acc = gamma · g + beta · m, and m := acc. nullptr: no feedback.
  float* residual;  // of a bucket, whose residuals are in its table: any
  float beta, gamma;
  uint64_t count_max;  // of the selection
  uint32_t* support;   // ascending positions,
  void* selected;      // and their values, in rows; whole: a copy of all of them, or nullptr: they stay where they are
  device_row* row;     // count, support_count, unlisted, not_finite, fault
  bool needs_finite;   // a selected value that is not finite is a fault
  bool plain;          // whole: the values are the payload, of which the row gets the size
};

// The tiles in which a selection reads a tensor of a bucket.
uint32_t flat_tiles_of(uint64_t elements, uint32_t dtype);

// Bound of the elements that are selected, or listed as candidates. Two counts share a word of the look-back.
inline constexpr uint64_t select_lists_limit = 0x7fffffff;
uint64_t select_lists(const device_select_job& job);

// The elements of a tensor that one block should select all at once. That takes 20 µs for 65,536, the launches for larger
// tensors 30; where those run anyway, it is worth it for few.
constexpr uint64_t solve_most(bool others_are_larger) { return others_are_larger ? 8192 : 65536; }

// Bytes of scratch: `zeroed` is zero when the call begins. From d, dtype, width, flat_tiles, kind, target, solved, dense_above
// and count_max alone.
struct device_select_need {
  uint64_t zeroed, plain;
};
device_select_need select_need(const device_select_job& job);

// Host memory that is reused, so that calls stop allocating once it is large enough.
struct device_select_scratch {
  struct placed {
    const device_select_job* job;
    uint64_t zeroed, plain;  // the offsets of its scratch
  };
  std::vector<placed> left, now, later;
  std::vector<dr_job> jobs;
};

// Enqueues. Scratch: the sums over jobs, every need rounded up to 64, in the order of the jobs. At most 6 launches for
// all jobs of one type, with or without feedback, one of which exits at once unless the estimate of the sample failed;
// 1 more each for chunks, for whole tensors and for sparse jobs.
dr_status select_on_device(const dr_exec& exec, std::span<const device_select_job> jobs, std::byte* zeroed,
                           std::byte* plain, device_select_scratch& host);

}  // namespace dr
