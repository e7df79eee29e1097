// value=ternary on a GPU. Encode: all values decide the mean, their distances from it the scale, and that the digits; so
// they are three launches, and the last block of a job in each of the first two prepares the next. Without clipping the
// scale is the largest magnitude, and there are two.
#pragma once

#include <cstdint>

#include "codecs/value/ternary/ternary_kernel.hpp"
#include "primitive/lookback.hpp"
#include "primitive/sum_tree_tile.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint32_t ternary_sum_values = 4096;  // of a block of lanes: whole tiles of the sum tree
inline constexpr uint32_t ternary_values = 5120;      // of a block of lanes that makes or reads digits: 1024 bytes
static_assert(ternary_sum_values % sum_tile == 0 && ternary_values % ternary_group == 0);

struct ternary_common {
  std::byte* scratch;  // encode: a job's begins 64 · extra in
  double clip;
  uint32_t dtype;
  uint32_t flags;  // of dr_exec, for drawn_key
};

// A job's numbers in scratch, zero before the call.
struct ternary_numbers {
  double mean;
  uint32_t largest, scale;    // bits of the tensor's type
  uint32_t summed, measured;  // blocks that are done
};
// A job's scratch: the numbers, and sums of its tiles of the sum tree, of one launch after the other.
struct ternary_scratch {
  ternary_numbers* numbers;
  double* sums;

  DR_HD static uint64_t size(uint64_t n) { return 64 + 8 * ceil_div(n, sum_tile); }
  DR_HD static ternary_scratch of(std::byte* from) {
    static_assert(sizeof(ternary_numbers) <= 64);
    return {reinterpret_cast<ternary_numbers*>(from), reinterpret_cast<double*>(from + 64)};
  }
};

// What a block that adds up knows of its job.
struct ternary_part {
  ternary_scratch scratch;
  uint64_t n, begin;
  uint32_t length, blocks;

  DR_HD static ternary_part of(const ternary_common& common, const tile_job& job, uint32_t tile) {
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{tile} * ternary_sum_values;
    const uint64_t rest = n > begin ? n - begin : 0;
    return {ternary_scratch::of(common.scratch + uint64_t{64} * job.extra), n, begin,
            static_cast<uint32_t>(rest < ternary_sum_values ? rest : ternary_sum_values),
            static_cast<uint32_t>(ceil_div(n, ternary_sum_values))};
  }
};

struct ternary_sum_shared {
  double part[256], total;
};

template <class Args>
struct ternary_survey {
  static constexpr const char* name = "ternary_survey";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  using shared = ternary_sum_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const ternary_part part = ternary_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    const uint32_t dtype = a.common.dtype;
    ternary_numbers& to = *part.scratch.numbers;
    typename Block::template each<uint32_t> largest;
    b.phase([&](unsigned lane) {
      largest[lane] = 0;
      for (uint32_t i = lane; i < part.length; i += lanes) {
        const uint32_t bits = load_bits(dtype, job.in, part.begin + i),
                       m = bits & (dtype == DR_F32 ? ~0u >> 1 : 0x7fff);
        if (m > largest[lane]) largest[lane] = m;
      }
    });
    const uint32_t own = b.max(largest);
    b.phase([&](unsigned lane) {
      if (lane == 0) atomic_max(&to.largest, own);
    });
    if (!(a.common.clip > 0)) return;
    put_tile_sums(b, s.part, part.length, part.scratch.sums + part.begin / sum_tile,
                  [&](uint32_t i) { return double{value_at(dtype, job.in, part.begin + i)}; });
    if (!last_of(b, &to.summed, part.blocks)) return;
    add_tile_sums(b, s.part, s.total, part.scratch.sums, ceil_div(part.n, sum_tile));
    b.phase([&](unsigned lane) {
      if (lane == 0) to.mean = s.total / static_cast<double>(part.n);
    });
  }
};

template <class Args>
struct ternary_measure {
  static constexpr const char* name = "ternary_measure";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  using shared = ternary_sum_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const ternary_part part = ternary_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    const uint32_t dtype = a.common.dtype;
    ternary_numbers& to = *part.scratch.numbers;
    const double mean = to.mean;
    put_tile_sums(b, s.part, part.length, part.scratch.sums + part.begin / sum_tile,
                  [&](uint32_t i) { return ternary_square(value_at(dtype, job.in, part.begin + i), mean); });
    if (!last_of(b, &to.measured, part.blocks)) return;
    add_tile_sums(b, s.part, s.total, part.scratch.sums, ceil_div(part.n, sum_tile));
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      with_value_type(dtype, [&](auto type) {
        to.scale = ternary_scale<decltype(type)>(to.largest, s.total, part.n, a.common.clip);
      });
    });
  }
};

template <class Args>
struct ternary_encode {
  static constexpr const char* name = "ternary_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {
    uint8_t digit[ternary_values];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{b.index() - job.first_tile} * ternary_values;
    if (begin >= n && begin > 0) return;
    const auto length = static_cast<uint32_t>(n - begin < ternary_values ? n - begin : ternary_values);
    const uint32_t dtype = a.common.dtype, groups = (length + ternary_group - 1) / ternary_group;
    const ternary_numbers& known = *ternary_scratch::of(a.common.scratch + uint64_t{64} * job.extra).numbers;
    const float scale = value_of(dtype, a.common.clip > 0 ? known.scale : known.largest);
    const uint64_t key = drawn_key(job, a.common.flags);
    auto* const out = static_cast<uint8_t*>(job.out);
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0) {
        if (job.fault->code == DR_OK) *job.out_size = n ? ternary_size(n) : 0;
        if (n) *reinterpret_cast<float*>(out) = scale;
      }
      for (uint32_t i = lane; i < groups * ternary_group; i += lanes)
        s.digit[i] =
            i < length ? ternary_drawn(value_at(dtype, job.in, begin + i), scale, draw(key, begin + i)) : uint8_t{1};
    });
    b.phase([&](unsigned lane) {
      for (uint32_t g = lane; g < groups; g += lanes)
        out[4 + begin / ternary_group + g] = ternary_byte(s.digit + g * ternary_group);
    });
  }
};

template <class Args>
struct ternary_decode {
  static constexpr const char* name = "ternary_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{b.index() - job.first_tile} * ternary_values;
    const uint64_t size = *job.in_size;
    const uint8_t *const in = input_of(job), *const body = in + 4;
    const bool fits = n == 0 || size == ternary_size(n);
    const uint32_t sent = fits && n ? *reinterpret_cast<const uint32_t*>(in) : 0;
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) {
        if (!fits)
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, size);
        else if (sent >= f32_type::infinity)
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, sent);
        else if (n && !ternary_padding_is_zero(body[size - 5], n))
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, size - 1, body[size - 5]);
        else
          *job.out_size = n * value_size(a.common.dtype);
      }
      if (!fits) return;
      with_value_type(a.common.dtype, [&](auto type) {
        using T = decltype(type);
        const auto number = T::from_f64(saturate<T>(f32_type::to_f32(sent)));
        auto* const out = static_cast<typename T::bits*>(job.out);
        for (uint64_t i = begin + lane; i < n && i < begin + ternary_values; i += lanes) {
          const uint8_t byte = body[i / ternary_group];
          if (byte > ternary_byte_max)
            return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 4 + i / ternary_group, byte);
          const uint32_t digit = ternary_digit_by_fraction(byte, static_cast<uint32_t>(i % ternary_group));
          out[i] = static_cast<typename T::bits>(digit == 1   ? 0u
                                                 : digit == 2 ? uint32_t{number}
                                                              : uint32_t{number} | minus_zero<T>);
        }
      });
    });
  }
};

}  // namespace dr
