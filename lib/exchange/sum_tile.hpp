// Sums and residuals of an exchange on a GPU, value by value.
#pragma once

#include <bit>
#include <cstdint>

#include "primitive/block.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

struct sum_job {
  const float* from;
  void* to;  // may be `from`, if it is f32
  uint64_t elements;
  uint32_t first_tile, dtype;
};
inline constexpr uint32_t sum_tile = 4096;

// Rounds f32 values to a type: sums before they are encoded, to infinity beyond the type's range; or residuals, in which
// what is not finite becomes 0.
template <size_t N>
struct round_values_of {
  static constexpr const char* name = "round_values_of";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles, tidies, reserved;
    sum_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const sum_job& j = job_of_tile(a, b.index());
    const uint64_t first = uint64_t{b.index() - j.first_tile} * sum_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t k = lane; k < sum_tile && first + k < j.elements; k += lanes) {
        const float x = j.from[first + k];
        const bool drops = a.tidies && !is_finite<f32_type>(std::bit_cast<uint32_t>(x));
        store_bits(j.dtype, j.to, first + k, drops ? 0 : bits_of(j.dtype, x));
      }
    });
  }
};

// to[i] += from[i], in f32: this rank's gradient to the sum of those before it.
struct add_job {
  const void* from;
  float* to;
  uint64_t elements;
  uint32_t first_tile, dtype;
};

template <size_t N>
struct add_values_to {
  static constexpr const char* name = "add_values_to";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles;
    add_job job[N];
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const add_job& j = job_of_tile(a, b.index());
    const uint64_t first = uint64_t{b.index() - j.first_tile} * sum_tile;
    b.phase([&](unsigned lane) {
      for (uint32_t k = lane; k < sum_tile && first + k < j.elements; k += lanes)
        j.to[first + k] = computed(j.to[first + k] + value_at(j.dtype, j.from, first + k));
    });
  }
};

}  // namespace dr
