// index=raw on a GPU: copies, four keys at a time.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint64_t index_raw_tile = 2048;  // keys

struct index_raw_common {};

template <class Args>
struct index_raw_encode {
  static constexpr const char* name = "index_raw_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job), begin = (b.index() - job.first_tile) * index_raw_tile;
    const auto* const in = static_cast<const uint32_t*>(job.in);
    auto* const out = static_cast<uint32_t*>(job.out);
    auto* const tell = static_cast<uint32_t*>(job.tell);
    b.phase([&](unsigned lane) {
      for (uint64_t k = 0; k < index_raw_tile / (4 * lanes); ++k) {
        const uint64_t i = begin + 4 * (k * lanes + lane);
        if (i >= n) break;
        const four_words keys = load_four(in, i, n);
        store_four(out, i, n, keys);
        if (tell) store_four(tell, i, n, keys);
      }
      if (begin != 0 || lane != 0 || job.fault->code != DR_OK) return;
      *job.out_size = 4 * n;
      if (tell) *job.tell_count = n;
    });
  }
};

template <class Args>
struct index_raw_decode {
  static constexpr const char* name = "index_raw_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    // Other tiles may raise a fault meanwhile: a lane's view of it must not affect later phases.
    b.phase([&](unsigned lane) {
      const uint64_t n = live_count(job), begin = (b.index() - job.first_tile) * index_raw_tile;
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = 4 * n;
      for (uint64_t k = 0; k < index_raw_tile / (4 * lanes); ++k) {
        const uint64_t i = begin + 4 * (k * lanes + lane);
        if (i >= n) break;
        const four_words keys = load_four(static_cast<const uint32_t*>(job.in), i, n);
        store_four(static_cast<uint32_t*>(job.out), i, n, keys);
        for (unsigned j = 0; j < 4 && i + j < n; ++j)
          if (keys.of[j] >= job.universe) raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, i + j, keys.of[j]);
      }
    });
  }
};

}  // namespace dr
