// value=sign on a GPU. Signs are a launch; the last block of a job adds up the sums of all, for its means.
#pragma once

#include <cmath>
#include <cstdint>

#include "primitive/lookback.hpp"
#include "primitive/sum_tree_tile.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t sign_values = 4096;  // of a block of lanes, 16 a lane

struct sign_common {
  std::byte* scratch;  // with means, a job's begins 64 · extra in
  uint32_t dtype;
  uint32_t means;  // 0 to 2
  uint32_t level;  // of no mean: the magnitude, an f32

  DR_HD uint64_t size(uint64_t n) const { return 4 * means + ceil_div(n, 8); }
};

// A job's scratch, zero before the call: blocks that are done, values below zero, and sums of its tiles of the sum tree.
struct sign_scratch {
  uint32_t* done;
  uint64_t* ones;
  double *below, *other;

  DR_HD static uint64_t size(uint64_t n) { return 64 + 16 * ceil_div(n, sum_tile); }
  DR_HD static sign_scratch of(std::byte* from, uint64_t n) {
    auto* const sums = reinterpret_cast<double*>(from + 64);
    return {reinterpret_cast<uint32_t*>(from), reinterpret_cast<uint64_t*>(from + 8), sums,
            sums + ceil_div(n, sum_tile)};
  }
};

template <class Args>
struct sign_encode {
  static constexpr const char* name = "sign_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static_assert(sign_values == lanes * sizeof(four_words));
  using args = Args;
  struct shared {
    alignas(16) four_words below[lanes];  // a byte a value
    double part[lanes], total[2];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{b.index() - job.first_tile} * sign_values;
    if (begin >= n && begin > 0) return;
    const auto length = static_cast<uint32_t>(n - begin < sign_values ? n - begin : sign_values);
    auto* const bits = static_cast<uint8_t*>(job.out) + 4 * a.common.means + begin / 8;
    const uint32_t dtype = a.common.dtype;
    b.phase([&](unsigned lane) {
      auto* const below = reinterpret_cast<uint8_t*>(s.below);
      for (uint32_t i = lane; i < sign_values; i += lanes)
        below[i] = i < length && value_at(dtype, job.in, begin + i) < 0;
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = n ? a.common.size(n) : 0;
    });
    typename Block::template each<uint32_t> ones;
    b.phase([&](unsigned lane) {
      const four_words own = s.below[lane];
      uint32_t word = 0;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) word |= (own.of[k] * 0x10204080 >> 28) << (4 * k);  // four bits side by side
      for (unsigned k = 0; k < 2; ++k)
        if (16 * lane + 8 * k < length) bits[2 * lane + k] = static_cast<uint8_t>(word >> (8 * k));
      ones[lane] = static_cast<uint32_t>(popcount(word));
    });
    if (a.common.means == 0 || n == 0) return;
    const sign_scratch scratch =
        sign_scratch::of(a.common.scratch + uint64_t{64} * job.extra, uint64_t{job.count_max} * job.width);
    if (a.common.means > 1) {
      const uint32_t all = b.sum(ones);
      b.phase([&](unsigned lane) {
        if (lane == 0 && all) atomic_add(scratch.ones, uint64_t{all});
      });
    }
    add_up(b, s, dtype, job, begin, length, scratch);
    const auto blocks = static_cast<uint32_t>(ceil_div(n, sign_values));
    if (!last_of(b, scratch.done, blocks)) return;
    put_means(b, s, a.common.means, job, n, scratch);
  }

 private:
  // Σ |v| of the values below zero, and of the others, in the order of the sum tree; 0 in the places of the other kind.
  template <class Block>
  DR_HD static void add_up(Block& b, shared& s, const uint32_t& dtype, const tile_job& job, const uint64_t& begin,
                           const uint32_t& length, const sign_scratch& scratch) {
    constexpr uint32_t group = tree_lanes(sum_tile), beside = lanes / group;
    static_assert(beside == 2);  // a tile's two sums
    for (uint32_t tile = 0; tile < sign_values / sum_tile; ++tile) {
      tree_sums(b, s.part, group, [&](uint32_t which, uint32_t i) {
        const uint32_t at = tile * static_cast<uint32_t>(sum_tile) + i;
        if (at >= length) return 0.0;
        const double v = value_at(dtype, job.in, begin + at);
        return which == 0 ? 0.5 * (std::fabs(v) - v) : 0.5 * (std::fabs(v) + v);  // exact
      });
      b.phase([&](unsigned lane) {
        if (lane >= 2 || tile * sum_tile >= length) return;
        (lane ? scratch.other : scratch.below)[begin / sum_tile + tile] = s.part[lane * group];
      });
    }
  }

  template <class Block>
  DR_HD static void put_means(Block& b, shared& s, const uint32_t& means, const tile_job& job, const uint64_t& n,
                              const sign_scratch& scratch) {
    const uint64_t tiles = ceil_div(n, sum_tile);
    constexpr uint32_t some = lanes / 2;
    for (uint64_t first = 0; first < tiles; first += some) {
      b.phase([&](unsigned lane) {
        const uint64_t i = first + lane % some;
        if (i < tiles) s.part[lane] = (lane < some ? scratch.below : scratch.other)[i];
      });
      b.phase([&](unsigned lane) {
        if (lane >= 2) return;
        double total = first == 0 ? 0 : s.total[lane];
        for (uint32_t i = 0; i < some && first + i < tiles; ++i) total += s.part[lane * some + i];
        s.total[lane] = total;
      });
    }
    b.phase([&](unsigned lane) {
      auto* const out = static_cast<float*>(job.out);
      const uint64_t ones = *scratch.ones;
      if (means == 1 && lane == 0) out[0] = mean_of(s.total[0] + s.total[1], n);
      if (means == 2 && lane < 2) out[lane] = mean_of(s.total[lane], lane ? n - ones : ones);
    });
  }
  DR_HD static float mean_of(double sum, uint64_t n) {
    return n ? static_cast<float>(sum / static_cast<double>(n)) : 0.0f;
  }
};

template <class Args>
struct sign_decode {
  static constexpr const char* name = "sign_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{b.index() - job.first_tile} * sign_values;
    const uint64_t size = *job.in_size;
    const uint8_t* const in = input_of(job);
    const uint8_t* const bits = in + 4 * a.common.means;
    const bool fits = n == 0 || size == a.common.size(n);
    uint32_t sent_below = a.common.level, sent_other = a.common.level;
    if (a.common.means && fits && n) {
      sent_below = *reinterpret_cast<const uint32_t*>(in);
      sent_other = reinterpret_cast<const uint32_t*>(in)[a.common.means - 1];
    }
    const uint32_t largest = sent_below > sent_other ? sent_below : sent_other;
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) {
        if (!fits)
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, size);
        else if (largest >= f32_type::infinity)
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, largest == sent_below ? 0 : 4, largest);
        else if (n && !padding_is_zero(bits, n))
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, size, 0);
        else
          *job.out_size = n * value_size(a.common.dtype);
      }
      if (!fits) return;
      with_value_type(a.common.dtype, [&](auto type) {
        using T = decltype(type);
        const auto below = T::from_f64(saturate<T>(f32_type::to_f32(sent_below))),
                   other = T::from_f64(saturate<T>(f32_type::to_f32(sent_other)));
        auto* const out = static_cast<typename T::bits*>(job.out);
        for (uint64_t i = begin + lane; i < n && i < begin + sign_values; i += lanes)
          out[i] = bits[i / 8] >> i % 8 & 1u ? static_cast<typename T::bits>(below | minus_zero<T>) : other;
      });
    });
  }
};

}  // namespace dr
