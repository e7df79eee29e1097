// index=all on a GPU: counts up.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint64_t all_tile = 2048;  // elements of the universe a block

struct all_common {};

// Writes the elements of a tile.
template <unsigned Lanes>
DR_HD inline void list_elements(uint32_t* to, uint64_t begin, uint64_t universe, unsigned lane) {
  for (uint64_t k = 0; k < all_tile / (4 * Lanes); ++k) {
    const uint64_t i = begin + 4 * (k * Lanes + lane);
    const auto first = static_cast<uint32_t>(i);
    if (i < universe) store_four(to, i, universe, {{first, first + 1, first + 2, first + 3}});
  }
}

// job.extra: the capacity of the support.
template <class Args>
struct all_encode {
  static constexpr const char* name = "all_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = (b.index() - job.first_tile) * all_tile;
    const bool tells = job.tell && job.universe <= job.extra;
    // Another tile may raise the fault meanwhile, of a support that no tile tells.
    b.phase([&](unsigned lane) {
      const bool lives = live_count(job) != 0;
      if (lives && tells) list_elements<lanes>(static_cast<uint32_t*>(job.tell), begin, job.universe, lane);
      if (begin != 0 || lane != 0 || job.fault->code != DR_OK) return;
      *job.out_size = 0;
      if (lives && job.tell && !tells) raise(job.fault, DR_E_CAPACITY, DR_STREAM_INDEX, 0, job.universe);
      if (lives && tells) *job.tell_count = job.universe;
    });
  }
};

// job.tell_count: the support in the frame; job.extra: the elements for which there is room.
template <class Args>
struct all_decode {
  static constexpr const char* name = "all_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t begin = (b.index() - job.first_tile) * all_tile;
    b.phase([&](unsigned lane) {
      const bool lives = live_count(job) != 0, fits = *job.tell_count == job.universe && job.universe <= job.extra;
      if (lives && fits) list_elements<lanes>(static_cast<uint32_t*>(job.out), begin, job.universe, lane);
      if (begin != 0 || lane != 0 || job.fault->code != DR_OK) return;
      *job.out_size = lives ? uint64_t{4} * job.universe : 0;
      if (lives && !fits) raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, 0, *job.tell_count);
    });
  }
};

}  // namespace dr
