// A sparse tensor becomes a support.
#pragma once

#include <cstdint>

#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// A sparse tensor: indices that strictly ascend become a support. job.in: indices, job.tell: values, job.out: support,
// job.extra: entries; job.count: the row (as a pointer).
struct adopt_common {
  uint32_t index_dtype, dtype, needs_finite;
};

DR_HD inline uint64_t index_at(uint32_t index_dtype, const void* indices, uint64_t i) {
  if (index_dtype == DR_U32) return static_cast<const uint32_t*>(indices)[i];
  if (index_dtype == DR_I32) return static_cast<uint64_t>(int64_t{static_cast<const int32_t*>(indices)[i]});
  return static_cast<const uint64_t*>(indices)[i];  // a negative index exceeds every universe
}

inline constexpr uint32_t adopt_tile = 1024;

template <class Args>
struct select_adopt {
  static constexpr const char* name = "select_adopt";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    auto* const row = reinterpret_cast<device_row*>(job.tell_count);
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * adopt_tile, n = job.extra, width = job.key;
    b.phase([&](unsigned lane) {
      // A lane issues all its loads at once.
      constexpr unsigned per_lane = adopt_tile / lanes;
      uint64_t own[per_lane], before[per_lane];
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k) {
        const uint64_t next = begin + k * lanes + lane, i = next < n ? next : n - 1;
        own[k] = before[k] = 0;
        if (n == 0) continue;
        own[k] = index_at(a.common.index_dtype, job.in, i);
        before[k] = index_at(a.common.index_dtype, job.in, i ? i - 1 : 0);
      }
#pragma unroll
      for (unsigned k = 0; k < per_lane; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        if (own[k] >= job.universe || (i && before[k] >= own[k]))
          raise(&row->fault, DR_E_ARGUMENT, DR_STREAM_NONE, i, own[k]);
        else
          static_cast<uint32_t*>(job.out)[i] = static_cast<uint32_t>(own[k]);
        if (a.common.needs_finite) judge(a.common.dtype, job.tell, i, width, row);
      }
      if (begin == 0 && lane == 0) row->count = row->support_count = n;
    });
  }

  DR_HD static void judge(uint32_t dtype, const void* values, uint64_t i, uint64_t width, device_row* row) {
    for (uint64_t at = i * width; at < (i + 1) * width; ++at)
      if (!is_finite(dtype, load_bits(dtype, values, at))) refuse_value(row, at);
  }
};

}  // namespace dr
