// Split Golomb on a GPU: indices to a payload.
#pragma once

#include "codecs/family/golomb/golomb_tile.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_bits.hpp"

namespace dr {

// in: indices; out: `key` bytes. Scratch of a job with several tiles: a look-back state each and a ticket, all zero.
template <class Args>
struct golomb_encode_tile {
  using args = Args;
  using common = decltype(Args::common);
  static constexpr const char* name = common::may_cluster ? "golomb_encode" : "rice_encode";
  static constexpr unsigned lanes = golomb_lanes, grid_phases = 1, resident = common::resident;
  static constexpr uint32_t words = (common::body_max + 15) / 16 * 4;
  struct shared {
    alignas(16) uint32_t body[words + 4];  // and a word that is read after it
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const unsigned block_log2 = a.common.block_log2;
    const uint32_t tiles = golomb_tiles(job.count_max, block_log2);
    auto* const state = reinterpret_cast<uint64_t*>(a.common.scratch + uint64_t{64} * job.extra);
    const golomb_head head = golomb_head::read(
        b, job, [] { return uint64_t{0}; },
        [&] { return tiles == 1 ? 0 : atomic_add(reinterpret_cast<uint32_t*>(state + tiles), 1u); });
    const golomb_place place = golomb_place::of(head, block_log2);
    if (!head.live) {
      // (A kernel beside this one may raise the fault at any time, and other tiles then still wait for this one.)
      if (place.n > 0 && place.blocks > 1) (void)lookback(b, state, place.tile, 0);
      return;
    }
    if (place.n > 0)
      encode(b, s, job, place, state);
    else if (place.tile == 0)
      b.phase([&](unsigned lane) {
        if (lane == 0) finish(job, 0, 0);
      });
  }

 private:
  // The encoder's candidates.
  struct choice {
    golomb_split plain, other;
    bool two;

    DR_HD static choice of(uint32_t span, uint32_t n) {
      const golomb_split plain = golomb_split::of(common::code(span, n, false));
      const bool two = common::may_cluster && plain.divisor > 1;
      return {plain, two ? golomb_split::of(common::code(span, n, true)) : plain, two};
    }
  };

  template <class Block>
  DR_HD static void encode(Block& b, shared& s, const tile_job& job, const golomb_place& place, uint64_t* state) {
    const uint32_t n = place.n, length = golomb_lane_length(n);
    const uint32_t* const x = static_cast<const uint32_t*>(job.in) + place.first();
    const uint32_t base = place.tile == 0 ? 0 : x[-1] + 1, end = x[n - 1] + 1;

    typename Block::template each<uint64_t> costs;  // plain, clustered << 32
    b.phase([&](unsigned lane) {
      const uint32_t first = lane * length;
      uint32_t previous = first > 0 && first < n ? x[first - 1] + 1 : base;
      golomb_lane<common::lane_max> indices;
      DR_UNROLL
      for (unsigned j = 0; j < common::lane_max; j += 4) {
        if (j >= length || first + j >= n) continue;
        const four_words four = load_four(x, first + j, n);
        DR_UNROLL
        for (unsigned l = 0; l < 4; ++l) indices.of[j + l] = four.of[l];
      }
      // n·(log2(span/n) + 2.92) bits at most and three paddings
      const uint32_t zeros = (n * (36 - bit_width(n)) + 24 + 127) / 128;
      for (uint32_t i = lane; i < zeros && i < words / 4; i += lanes)
        reinterpret_cast<four_words*>(s.body)[i] = four_words{};
      // Divisors need two of the indices, so they come when all loads are on their way.
      const choice by = choice::of(end - base, n);
      uint64_t sum = 0;
      DR_UNROLL
      for (unsigned j = 0; j < common::lane_max; ++j) {
        if (j >= length || first + j >= n) continue;
        const uint32_t gap = indices.of[j] - previous;
        previous = indices.of[j] + 1;
        sum += by.plain.cost(gap);
        if (by.two) sum += uint64_t{by.other.cost(gap)} << 32;
      }
      costs[lane] = sum;
    });
    const uint64_t cost = b.exclusive_sum(costs);

    const choice by = choice::of(end - base, n);
    const golomb_layout as_plain = golomb_layout::of(by.plain, n, static_cast<uint32_t>(cost));
    const golomb_layout as_other = golomb_layout::of(by.other, n, static_cast<uint32_t>(cost >> 32));
    const bool clustered = by.two && as_other.size() < as_plain.size();
    const golomb_split split = clustered ? by.other : by.plain;
    const golomb_layout layout = clustered ? as_other : as_plain;
    const uint32_t body = layout.size();
    b.phase([&](unsigned lane) {
      // The values for look-back are published as early as they are known.
      if (lane == 0 && place.blocks > 1)
        store_release(state + place.tile, uint64_t{body} << 2 | (place.tile == 0 ? 3 : 1));
      const uint32_t first = lane * length;
      if (first >= n) return;
      const auto before = static_cast<uint32_t>(clustered ? costs[lane] >> 32 : costs[lane]);
      tile_bits low(s.body, words, first * split.low_bits);
      tile_bits unary(s.body, words, 8 * layout.low + first + (before & 0xffff));
      uint32_t extra = 0, extras = 0;
      const uint32_t own = n - first < length ? n - first : length;
      uint32_t behind = first == 0 ? base : x[first - 1] + 1;
      DR_ROLL
      for (uint32_t j = 0; j < own; j += 4) {
        const four_words four = load_four(x + first, j, own);
        DR_UNROLL
        for (unsigned l = 0; l < 4; ++l) {
          if (j + l >= own) continue;
          const golomb_split::parts p = split(four.of[l] - behind);
          behind = four.of[l] + 1;
          const uint32_t sum = p.r + split.short_low;  // below 2^c
          const bool is_long = p.r >= split.short_low;
          low.put(is_long ? sum >> 1 : p.r, split.low_bits);
          unary.put_unary(p.q);
          if (is_long) extra |= (sum & 1) << extras++;
        }
      }
      low.finish();
      unary.finish();
      tile_bits extra_bits(s.body, words, 8 * (layout.low + layout.unary) + (before >> 16));
      extra_bits.put(extra, extras);
      extra_bits.finish();
    });

    const bool lone = place.blocks == 1;
    const uint64_t varint = 2 * (uint64_t{job.universe} - end) + clustered;
    const uint64_t at = lone ? (varint ? (bit_width(varint) + 6) / 7 : 1)
                             : 6 * uint64_t{place.blocks} + lookback(b, state, place.tile, body);
    auto* const out = static_cast<uint8_t*>(job.out);
    b.phase([&](unsigned lane) {
      if (body <= common::body_max && at + body <= job.key) put_bytes(s.body, body, out + at, lane, lanes);
      if (lane == 0) {
        if (lone)
          put_varint(out, varint);
        else
          put_entry(out + 6 * uint64_t{place.tile}, end, body, clustered);
        if (place.last()) finish(job, at + body, place.end());
      }
      if (job.tell) {
        auto* const tell = static_cast<uint32_t*>(job.tell) + place.first();
        for (uint32_t i = 4 * lane; i < n; i += 4 * lanes) store_four(tell, i, n, load_four(x, i, n));
      }
    });
  }

  DR_HD static void finish(const tile_job& job, uint64_t size, uint64_t count) {
    *job.out_size = size;
    if (job.tell) *job.tell_count = count;
  }

  DR_HD static void put_entry(uint8_t* entry, uint32_t end, uint32_t body, bool clustered) {
    auto* const to = reinterpret_cast<uint16_t*>(entry);
    to[0] = static_cast<uint16_t>(end);
    to[1] = static_cast<uint16_t>(end >> 16);
    to[2] = static_cast<uint16_t>(body | (clustered ? golomb_flag : 0));
  }
};

}  // namespace dr
