// Orders on a GPU: sorts values by an order stream, or by keys that carry the order.
#pragma once

#include <cstdint>

#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"
#include "split/order_kernel.hpp"

namespace dr {

// keys[k] = support[order[k]]: the support in the order of the values. job.in: order, job.tell: support, job.out: keys.
template <class Args>
struct reorder_keys {
  static constexpr const char* name = "reorder_keys";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job), begin = uint64_t{b.index() - job.first_tile} * row_tile;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        const uint32_t from = static_cast<const uint32_t*>(job.in)[i];
        static_cast<uint32_t*>(job.out)[i] = from < n ? static_cast<const uint32_t*>(job.tell)[from] : 0;
      }
    });
  }
};

// in_order[order[k]] = values[k]; a list that is not a permutation is a fault. job.in: values, job.tell: order,
// job.out: in_order, job.extra: words of the zeroed bitmap before this job's, in scratch.
struct apply_order_common {
  uint32_t* seen;
  uint32_t value_size;
};
template <class Args>
struct apply_order {
  static constexpr const char* name = "apply_order";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile;
    const uint64_t n = b.template once<uint64_t>([&] { return live_count(job); });
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        const uint32_t to = static_cast<const uint32_t*>(job.tell)[i];
        if (mark_place(a.common.seen + job.extra, n, to,
                       [](uint32_t* word, uint32_t bit) { return atomic_or(word, bit); }))
          copy_value(a.common.value_size, job.in, i, job.out, to);
        else
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_ORDER, i, to);
      }
    });
  }
};

// Keys that carry the order of the values: pairs to sort, and the result. job.in: keys, job.tell: values; job.out:
// support, tell_count: the values in order (as a pointer).
struct sort_keys_common {
  uint64_t* keys;
  uint32_t* positions;
  uint32_t value_size;
};
template <class Args>
struct sort_keys {
  static constexpr const char* name = "sort_keys";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile, n = live_count(job);
    const uint64_t number = static_cast<uint64_t>(&job - a.job), first = job.extra;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= job.count_max) continue;
        // Padding of a job is sorted after its keys, so a job does not move.
        a.common.keys[first + i] = number << 33 | (i < n ? static_cast<const uint32_t*>(job.in)[i] : uint64_t{1} << 32);
        a.common.positions[first + i] = static_cast<uint32_t>(i);
      }
    });
  }
};
template <class Args>
struct take_keys {
  static constexpr const char* name = "take_keys";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile, n = live_count(job), first = job.extra;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        static_cast<uint32_t*>(job.out)[i] = static_cast<uint32_t>(a.common.keys[first + i]);
        copy_value(a.common.value_size, job.tell, a.common.positions[first + i], job.tell_count, i);
      }
    });
  }
};

}  // namespace dr
