// value=half on a GPU: a lane converts one value in every 256.
#pragma once

#include <cstdint>

#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t half_values = 2048;  // of a block of lanes

struct half_common {
  uint32_t dtype, is_bf16;

  // f(type) of the payload's numbers.
  template <class F>
  DR_HD void with_half(F&& f) const {
    if (is_bf16) return f(bf16_type{});
    f(f16_type{});
  }
};

template <class Args>
struct half_encode {
  static constexpr const char* name = "half_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{b.index() - job.first_tile} * half_values;
    auto* const out = static_cast<uint16_t*>(job.out);
    b.phase([&](unsigned lane) {
      a.common.with_half([&](auto to) {
        for (uint64_t i = begin + lane; i < n && i < begin + half_values; i += lanes)
          out[i] = rounded_finite<decltype(to)>(value_at(a.common.dtype, job.in, i));
      });
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = 2 * n;
    });
  }
};

template <class Args>
struct half_decode {
  static constexpr const char* name = "half_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{b.index() - job.first_tile} * half_values;
    const uint64_t size = *job.in_size;
    const auto* const in = reinterpret_cast<const uint16_t*>(input_of(job));
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) {
        if (n != 0 && size != 2 * n)
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, size);
        else
          *job.out_size = n * value_size(a.common.dtype);
      }
      if (size != 2 * n) return;
      a.common.with_half([&](auto from) {
        using From = decltype(from);
        with_value_type(a.common.dtype, [&](auto to) {
          using To = decltype(to);
          for (uint64_t i = begin + lane; i < n && i < begin + half_values; i += lanes) {
            const uint16_t bits = in[i];
            if (!is_finite<From>(bits)) return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 2 * i, bits);
            static_cast<typename To::bits*>(job.out)[i] = rounded_finite<To>(From::to_f32(bits));
          }
        });
      });
    });
  }
};

}  // namespace dr
