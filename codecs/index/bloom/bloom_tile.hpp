// index=bloom on a GPU. Encode builds the filter in scratch, which is zero, and copies it where it asks it; asking is
// one launch over the universe, whose tiles number their positives by look-back.
#pragma once

#include <bit>
#include <cstdint>

#include "codecs/index/bloom/bloom_kernel.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint32_t bloom_insert_tile = 1024;  // indices
inline constexpr uint32_t bloom_tile = 4096;         // elements of the universe

DR_HD constexpr uint64_t bloom_tiles(uint64_t universe) { return universe ? ceil_div(universe, bloom_tile) : 1; }

// A job's scratch: this, a state per tile, and for encode, at a multiple of 16, the filter.
struct bloom_scratch {
  uint32_t ticket;  // of the launch: that of its first job counts
  uint32_t unused;
  uint64_t reached;  // 1: a tile has reached the requested number of positives

  DR_HD static constexpr uint64_t filter_offset(uint64_t universe) {
    return (sizeof(bloom_scratch) + 8 * bloom_tiles(universe) + 15) / 16 * 16;
  }
};
static_assert(sizeof(bloom_scratch) == 16);

struct bloom_common {
  uint8_t* scratch;  // of a job: at 64 · extra
  uint64_t policy, c;
  uint32_t hashes, seed;

  DR_HD bloom_scratch* scratch_of(const tile_job& job) const {
    return reinterpret_cast<bloom_scratch*>(scratch + 64 * uint64_t{job.extra});
  }
  DR_HD bool too_large(uint64_t count, uint64_t universe) const {
    return bloom_bits(count, c) > bloom_bits_max(universe);
  }
  DR_HD bloom_shape shape(uint64_t count) const {
    return {divisor::of(static_cast<uint32_t>(bloom_bits(count, c))), hashes, seed};
  }
};

struct bloom_shared {
  uint16_t found[bloom_tile];
};

// Bit e: whether element first + e, e < n <= 32, is a positive. One loop over all that is looked at, not one an
// element: lanes of a warp wait for each other once, and the slowest of 32 needs 45 steps for 16 elements, not 101 (k =
// 10, half of the bits set).
DR_HD inline uint32_t bloom_ask(const bloom_shape& shape, const uint32_t* filter, uint32_t first, uint32_t n) {
  uint32_t positives = 0;
  for (uint32_t e = 0, j = 0; e < n;) {
    const uint32_t bit = shape.bit(first + e, j);
    const uint32_t set = filter[bit / 32] >> (bit % 32) & 1;
    if (set && ++j < shape.hashes) continue;
    positives |= set << e;
    ++e;
    j = 0;
  }
  return positives;
}

// Writes the job's positives of a tile to `out`, those among the first `limit`. Returns the number of positives
// up to and with the tile; from the tile that reaches `requested` on, perhaps fewer, but at least `requested`.
// Every tile of a job has to come here, or none.
template <class Block>
DR_HD uint64_t bloom_tell_tile(Block& b, bloom_shared& s, bloom_scratch* scratch, const bloom_shape& shape,
                               const uint32_t* filter, uint32_t universe, uint32_t tile, uint64_t requested,
                               uint32_t* out, uint64_t limit) {
  constexpr uint32_t each_lane = bloom_tile / Block::lanes;
  typename Block::template each<uint32_t> positives, place;
  // Tiles before the one that reaches it cannot see this: it waited for their sums.
  const bool reached = b.template once<uint32_t>([&] { return load_acquire(&scratch->reached) != 0; });
  b.phase([&](unsigned lane) {
    const uint64_t first = uint64_t{tile} * bloom_tile + lane * each_lane;
    const uint64_t n = reached || first >= universe ? 0 : universe - first < each_lane ? universe - first : each_lane;
    positives[lane] = bloom_ask(shape, filter, static_cast<uint32_t>(first), static_cast<uint32_t>(n));
    place[lane] = popcount(positives[lane]);
  });
  const uint32_t own = b.exclusive_sum(place);
  auto* states = reinterpret_cast<uint64_t*>(scratch + 1);
  const uint64_t before = lookback(b, states, tile, own);
  b.phase([&](unsigned lane) {
    if (lane == 0 && before < requested && before + own >= requested) store_release(&scratch->reached, 1);
    uint32_t to = place[lane];
    for (uint32_t left = positives[lane]; left; left &= left - 1)
      s.found[to++] = static_cast<uint16_t>(lane * each_lane + countr_zero(left));
  });
  b.phase([&](unsigned lane) {
    for (uint32_t i = lane; i < own && before + i < limit; i += Block::lanes)
      out[before + i] = tile * bloom_tile + s.found[i];
  });
  return before + own;
}

// Sets the support's bits.
template <class Args>
struct bloom_build {
  static constexpr const char* name = "bloom_build";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t count = live_count(job), begin = uint64_t{b.index() - job.first_tile} * bloom_insert_tile;
    if (begin >= count || a.common.too_large(count, job.universe)) return;
    const bloom_shape shape = a.common.shape(count);
    bloom_scratch* scratch = a.common.scratch_of(job);
    auto* filter =
        reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(scratch) + bloom_scratch::filter_offset(job.universe));
    b.phase([&](unsigned lane) {
      for (uint64_t i = begin + lane; i < begin + bloom_insert_tile && i < count; i += lanes) {
        const uint32_t element = static_cast<const uint32_t*>(job.in)[i];
        for (uint32_t j = 0; j < shape.hashes; ++j) {
          const uint32_t bit = shape.bit(element, j);
          atomic_or(filter + bit / 32, 1u << (bit % 32));
        }
      }
    });
  }
};

// Copies the filter to its payload, and reports the support that decode will return.
template <class Args>
struct bloom_tell {
  static constexpr const char* name = "bloom_tell";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  using shared = bloom_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const uint32_t ticket = take_tile(b, &a.common.scratch_of(a.job[0])->ticket);
    const tile_job& job = job_of_tile(a, ticket);
    const uint32_t tile = ticket - job.first_tile, tiles = static_cast<uint32_t>(bloom_tiles(job.universe));
    const uint64_t count = live_count(job);
    if (count == 0) {
      b.phase([&](unsigned lane) {
        if (tile == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
      });
      return;
    }
    if (a.common.too_large(count, job.universe)) {
      b.phase([&](unsigned lane) {
        if (tile != 0 || lane != 0 || job.fault->code != DR_OK) return;
        raise(job.fault, DR_E_CAPACITY, DR_STREAM_INDEX, 0, bloom_bits(count, a.common.c));
        *job.out_size = 0;
      });
      return;
    }
    const bloom_shape shape = a.common.shape(count);
    bloom_scratch* scratch = a.common.scratch_of(job);
    const uint8_t* filter = reinterpret_cast<uint8_t*>(scratch) + bloom_scratch::filter_offset(job.universe);
    const uint32_t size = shape.bits.value / 8;
    b.phase([&](unsigned lane) {
      copy(filter, job.out, size, tile, tiles, lane);
      if (tile == 0 && lane == 0) *job.out_size = size;
    });
    if (!job.tell) return;
    const uint64_t capacity = job.key, requested = a.common.policy == bloom_p0 ? job.universe : count;
    const uint64_t reported =
        bloom_tell_tile(b, s, scratch, shape, reinterpret_cast<const uint32_t*>(filter), job.universe, tile, requested,
                        static_cast<uint32_t*>(job.tell), capacity < requested ? capacity : requested);
    if (tile + 1 < tiles) return;
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const uint64_t support = reported < requested ? reported : requested;
      if (support > capacity) return raise(job.fault, DR_E_CAPACITY, DR_STREAM_INDEX, 0, capacity + 1);
      *job.tell_count = support;
    });
  }

 private:
  struct alignas(16) quad {
    uint32_t word[4];
  };

  // The lane's share of the tile's.
  DR_HD static void copy(const void* from, void* to, uint32_t size, uint32_t tile, uint32_t tiles, unsigned lane) {
    const uint64_t quads = ceil_div(size, sizeof(quad)), share = ceil_div(quads, tiles), begin = tile * share;
    for (uint64_t i = begin + lane; i < begin + share && i < quads; i += lanes)
      static_cast<quad*>(to)[i] = static_cast<const quad*>(from)[i];
  }
};

template <class Args>
struct bloom_decode {
  static constexpr const char* name = "bloom_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  using shared = bloom_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const uint32_t ticket = take_tile(b, &a.common.scratch_of(a.job[0])->ticket);
    const tile_job& job = job_of_tile(a, ticket);
    const uint32_t tile = ticket - job.first_tile, tiles = static_cast<uint32_t>(bloom_tiles(job.universe));
    // A kernel beside this one may raise the fault, and a block that left for it would be waited for: so blocks leave by
    // the count alone, and write nothing where they see a fault. (One lane asks for all.)
    const bool live = b.template once<uint32_t>([&] { return job.fault->code == DR_OK; });
    const uint64_t count = bounded_count(job);
    const bloom_shape shape = a.common.shape(count);
    const uint64_t stated = *job.tell_count;
    const bool other_size = *job.in_size != shape.bits.value / 8 || a.common.too_large(count, job.universe);
    // All blocks of a job continue, or none: no block waits for a tile that never starts.
    if (count == 0 || other_size || (a.common.policy != bloom_p0 && stated != count)) {
      b.phase([&](unsigned lane) {
        if (tile != 0 || lane != 0 || job.fault->code != DR_OK) return;
        if (count != 0) return raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, 0, other_size ? *job.in_size : stated);
        *job.out_size = 0;
      });
      return;
    }
    const uint64_t requested = a.common.policy == bloom_p0 ? job.universe : count;
    const uint64_t room = static_cast<uint64_t>(static_cast<uint32_t*>(job.tell) - static_cast<uint32_t*>(job.out));
    uint64_t limit = stated < requested ? stated : requested;
    if (room < limit) limit = room;
    if (!live) limit = 0;
    const uint64_t reported =
        bloom_tell_tile(b, s, a.common.scratch_of(job), shape, static_cast<const uint32_t*>(job.in), job.universe, tile,
                        requested, static_cast<uint32_t*>(job.out), limit);
    if (tile + 1 < tiles || !live) return;
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const uint64_t support = reported < requested ? reported : requested;
      if (support != stated || support > room)
        return raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, 0, support < stated ? support : stated + 1);
      *job.out_size = 4 * support;
    });
  }
};

}  // namespace dr
