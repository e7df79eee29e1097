// value=raw on a GPU: a copy of `count` values.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint64_t value_raw_tile = 8192;  // bytes

struct value_raw_common {
  uint32_t value_size;
};

template <class Args>
struct value_raw_copy {
  static constexpr const char* name = "value_raw";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t size = live_count(job) * job.width * a.common.value_size;
    const uint64_t begin = (b.index() - job.first_tile) * value_raw_tile;
    const auto* in = static_cast<const uint8_t*>(job.in);
    auto* out = static_cast<uint8_t*>(job.out);
    // Values lie at multiples of 2; words where both ends do.
    const bool words = reinterpret_cast<uintptr_t>(in) % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 4 == 0;
    b.phase([&](unsigned lane) {
      for (uint64_t k = 0; k < value_raw_tile / (4 * lanes); ++k) {
        const uint64_t at = begin + 4 * (k * lanes + lane);
        if (words && at + 4 <= size) {
          *reinterpret_cast<uint32_t*>(out + at) = *reinterpret_cast<const uint32_t*>(in + at);
        } else {
          for (uint64_t i = at; i < at + 4 && i < size; i += 2)
            *reinterpret_cast<uint16_t*>(out + i) = *reinterpret_cast<const uint16_t*>(in + i);
        }
      }
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = size;
    });
  }
};

}  // namespace dr
