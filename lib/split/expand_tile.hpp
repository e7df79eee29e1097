// Blocks of contiguous elements on a GPU: the elements of a list of blocks that an index codec decoded (blocks.hpp).
#pragma once

#include <cstdint>

#include "primitive/ascending.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

// job.in: blocks, job.count of them; job.out: elements, of which tell_count says the number; job.universe: of elements;
// job.extra: log2 of a block's elements. A list that does not ascend below the number of blocks is a fault, and one with
// another number of elements.
template <class Args>
struct expand_lists {
  static constexpr const char* name = "expand_lists";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * row_tile;
    const uint64_t n = b.template once<uint64_t>([&] { return live_count(job); });
    if (n == 0) return;
    const auto* const blocks = static_cast<const uint32_t*>(job.in);
    const uint32_t shift = job.extra, rest = (1u << shift) - 1;
    const uint64_t all = (uint64_t{job.universe} + rest) >> shift, most = n << shift;
    const uint64_t told = *job.tell_count, count = told < most ? told : most;
    b.phase([&](unsigned lane) {
      for (unsigned k = 0; k < row_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane, at = i >> shift;
        if (i >= count) continue;
        const bool sound = ascends(blocks, at, all);
        static_cast<uint32_t*>(job.out)[i] = sound ? (blocks[at] << shift) + (static_cast<uint32_t>(i) & rest) : 0;
        if (!sound) raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, at, blocks[at]);
      }
      if (begin != 0 || lane != 0) return;
      const uint64_t end = (uint64_t{blocks[n - 1]} + 1) << shift, over = end > job.universe ? end - job.universe : 0;
      if (most - over != told) raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, n - 1, blocks[n - 1]);
    });
  }
};

}  // namespace dr
