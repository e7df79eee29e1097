// value=qsgd on a GPU. Encode: the codes of a tile's buckets end with a word, which no other block then
// writes.
#pragma once

#include <cstdint>

#include "codecs/value/qsgd/qsgd_kernel.hpp"
#include "primitive/bits.hpp"
#include "primitive/divisor.hpp"
#include "primitive/sum_tree_tile.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

// Values that a block of lanes codes at once: 4 per lane. A multiple of 32: their codes end with a word at any width.
inline constexpr uint32_t qsgd_chunk = 1024;
// Values that a block of decode has on their way at once, 4 a lane. A multiple of 32, too. Where there are more than 2^20, a
// block does this four times: what it begins with takes as long as three such steps.
inline constexpr uint32_t qsgd_decode_step = 1024;

struct qsgd_common {
  uint32_t dtype, levels;
  uint32_t tile;  // values; encode: a multiple of the bucket; decode: of qsgd_decode_step
  divisor bucket, code_bits;
  uint32_t flags;  // of dr_exec, for drawn_key
  double inverse;  // 1 / levels

  DR_HD qsgd_layout layout(uint64_t n) const { return {levels, bucket.value, n}; }
};

// Word k of the codes that begin at `codes`.
DR_HD inline uint32_t qsgd_word(const uint16_t* codes, const divisor& code_bits, uint32_t k) {
  const uint32_t bits = code_bits.value;
  uint32_t i = code_bits.quotient(32 * k);
  uint32_t word = codes[i] >> (32 * k - i * bits);
  for (uint32_t at = ++i * bits - 32 * k; at < 32; at += bits) word |= uint32_t{codes[i++]} << at;
  return word;
}

template <class Args>
struct qsgd_encode {
  static constexpr const char* name = "qsgd_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {
    double part[lanes], total;
    float norm[qsgd_chunk];  // of a tile: it has more values only where they are of few buckets
    uint16_t code[qsgd_chunk];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const qsgd_layout l = a.common.layout(live_count(job) * job.width);
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * a.common.tile;
    if (begin == 0) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && job.fault->code == DR_OK) *job.out_size = l.size;
      });
    }
    if (begin >= l.n) return;
    const uint32_t n = l.n - begin < a.common.tile ? static_cast<uint32_t>(l.n - begin) : a.common.tile;
    auto* out = static_cast<uint32_t*>(job.out);
    with_value_type(a.common.dtype, [&](auto type) {
      using T = decltype(type);
      const auto* in = static_cast<const typename T::bits*>(job.in) + begin;
      norms<T>(b, s, in, n, a.common.bucket.value, out + begin / a.common.bucket.value);
      codes<T>(b, s, in, n, a.common, drawn_key(job, a.common.flags), begin,
               out + l.buckets + begin * l.code_bits / 32);
    });
  }

 private:
  // Of the buckets of n values, into shared memory and to `out`.
  template <class T, class Block>
  DR_HD static void norms(Block& b, shared& s, const typename T::bits* in, uint32_t n, uint32_t bucket, uint32_t* out) {
    const auto put = [&](uint32_t i, double squares) {
      s.norm[i] = qsgd_norm_of<T>(squares);
      out[i] = std::bit_cast<uint32_t>(s.norm[i]);
    };
    if (bucket <= sum_tile) {
      const uint32_t group = tree_lanes(bucket), beside = lanes / group;
      for (uint32_t first = 0; first * bucket < n; first += beside) {
        tree_sums(b, s.part, group, [&](uint32_t k, uint32_t i) {
          const uint32_t at = (first + k) * bucket + i;
          return i < bucket && at < n ? qsgd_square<T>(in[at]) : 0.0;
        });
        b.phase([&](unsigned lane) {
          if (lane < beside && (first + lane) * bucket < n) put(first + lane, s.part[lane * group]);
        });
      }
      return;
    }
    constexpr uint32_t group = tree_lanes(sum_tile), step = lanes / group * sum_tile;
    for (uint32_t i = 0; i * bucket < n; ++i) {
      const uint32_t begin = i * bucket, end = n - begin < bucket ? n : begin + bucket;
      for (uint32_t from = begin; from < end; from += step) {
        tree_sums(b, s.part, group, [&](uint32_t k, uint32_t j) {
          const uint32_t at = from + k * sum_tile + j;
          return at < end ? qsgd_square<T>(in[at]) : 0.0;
        });
        b.phase([&](unsigned lane) {
          if (lane != 0) return;
          double total = from == begin ? 0 : s.total;
          for (uint32_t k = 0; k < lanes; k += group) total += s.part[k];
          s.total = total;
          if (end - from <= step) put(i, total);
        });
      }
    }
  }

  // `begin`: of the first value in its stream, for its draw.
  template <class T, class Block>
  DR_HD static void codes(Block& b, shared& s, const typename T::bits* in, uint32_t n, const qsgd_common& c,
                          uint64_t key, uint64_t begin, uint32_t* out) {
    for (uint32_t from = 0; from < n; from += qsgd_chunk) {
      const uint32_t length = n - from < qsgd_chunk ? n - from : qsgd_chunk;
      b.phase([&](unsigned lane) {
        for (uint32_t i = lane; i < qsgd_chunk; i += lanes) {
          uint32_t code = 0;
          if (i < length)
            code = qsgd_code(T::to_f32(in[from + i]), s.norm[c.bucket.quotient(from + i)], c.levels,
                             draw(key, begin + from + i));
          s.code[i] = static_cast<uint16_t>(code);
        }
      });
      b.phase([&](unsigned lane) {
        for (uint32_t k = lane; 32 * k < length * c.code_bits.value; k += lanes)
          out[from / 32 * c.code_bits.value + k] = qsgd_word(s.code, c.code_bits, k);
      });
    }
  }
};

template <class Args>
struct qsgd_decode {
  static constexpr const char* name = "qsgd_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t in_size = *job.in_size;
    const uint8_t* const in = input_of(job);
    const qsgd_layout l = a.common.layout(live_count(job) * job.width);
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * a.common.tile, end = begin + a.common.tile;
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) whole(job, in, a.common.dtype, l);
      if (begin >= l.n || in_size != l.size) return;
      const uint64_t bucket = begin / l.bucket;
      const auto before = static_cast<uint32_t>(begin - bucket * l.bucket);
      with_value_type(a.common.dtype, [&](auto type) {
#pragma unroll 1
        for (uint64_t at = begin; at < end && at < l.n; at += qsgd_decode_step)
          some<decltype(type)>(job, in, a.common, l, at, bucket, before + static_cast<uint32_t>(at - begin), lane);
      });
    });
  }

 private:
  // The checks of the payload as a whole.
  DR_HD static void whole(const tile_job& job, const uint8_t* in, uint32_t dtype, const qsgd_layout& l) {
    if (l.n != 0 && *job.in_size != l.size) return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, *job.in_size);
    if (!padding_is_zero(in + l.norms_size, l.n * l.code_bits))
      return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, l.size, 0);
    *job.out_size = l.n * value_size(dtype);
  }

  // Every 256th value of a step, all loads on their way at once; it begins `before` values behind a bucket's first. The
  // payload is as long as its layout.
  template <class T>
  DR_HD static void some(const tile_job& job, const uint8_t* in, const qsgd_common& c, const qsgd_layout& l,
                         uint64_t begin, uint64_t bucket, uint32_t before, unsigned lane) {
    const auto* const norms = reinterpret_cast<const uint32_t*>(in) + bucket;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(in) + l.buckets + begin / 32 * l.code_bits;
    auto* const out = static_cast<typename T::bits*>(job.out) + begin;
    const uint32_t n = l.n - begin < qsgd_decode_step ? static_cast<uint32_t>(l.n - begin) : qsgd_decode_step;
    constexpr unsigned per_lane = qsgd_decode_step / lanes;
    uint32_t norm[per_lane], low[per_lane], high[per_lane];
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k) {
      const uint32_t position = k * lanes + lane, i = position < n ? position : 0, at = i * l.code_bits;
      norm[k] = norms[c.bucket.quotient(before + i)];
      low[k] = words[at / 32];
      high[k] = words[(at + l.code_bits - 1) / 32];  // of the code's last bit
    }
#pragma unroll
    for (unsigned k = 0; k < per_lane; ++k) {
      const uint32_t i = k * lanes + lane;
      if (i >= n) return;
      const uint32_t code =
          funnel(low[k], high[k], i * l.code_bits % 32) & static_cast<uint32_t>(low_mask(l.code_bits));
      if (norm[k] >= f32_type::infinity)
        return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 4 * (bucket + c.bucket.quotient(before + i)), norm[k]);
      if (code >> 1 > l.levels) return raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, begin + i, code >> 1);
      out[i] = T::from_f64(qsgd_value_by(c.inverse, code, std::bit_cast<float>(norm[k]), l.levels));
    }
  }
};

}  // namespace dr
