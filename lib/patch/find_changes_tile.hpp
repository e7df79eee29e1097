// sparsify=changed on a GPU: one read of a tensor and of its base gives the support, its values, and the checks of both.
#pragma once

#include <cstdint>
#include <cstring>

#include "patch/chunk_sums_tile.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint32_t changes_tile = chunks_together * chunk_size_bytes;  // bytes of a tensor a block

struct changes_job {
  const void *base, *now;
  uint32_t* support;  // ascending positions of values that differ,
  void* selected;     // what they are,
  void* based;        // and what they were; NULL: nobody reads it
  device_row* row;    // count, support_count; unlisted, if more differ than are listed
  uint64_t* checks;   // of the base and of what it becomes; zero when a call begins
  uint64_t* ticket;   // and a word a tile for the look-back behind it; likewise
  uint32_t universe, count_max;
  uint32_t first_tile;  // of the launch
  uint32_t size;        // bytes of a value
};
static_assert(sizeof(changes_job) == 80);

// Words of a job's `ticket`, for the host.
constexpr uint64_t changes_tiles(uint64_t bytes) { return (bytes + changes_tile - 1) / changes_tile; }

template <size_t N>
struct find_changes {
  static constexpr const char* name = "find_changes";
  static constexpr unsigned lanes = patch_lanes, grid_phases = 1;
  struct args {
    uint32_t jobs, tiles;
    changes_job job[N];
  };
  struct shared {
    alignas(16) uint8_t of[chunks_together * lanes];  // a vector's mask: a bit per value that differs
    uint16_t place[changes_tile / 2];                 // in the tile, of the values that differ
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const changes_job& j = job_of_tile(a, b.index());
    const uint32_t tile = take_tile(b, reinterpret_cast<uint32_t*>(j.ticket));
    const uint64_t begin = uint64_t{tile} * changes_tile;
    typename Block::template each<chunk_sums> sums;
    b.phase([&](unsigned lane) { sums[lane] = compare(s, j, begin, lane); });
    const chunk_sums all = b.sum(sums);
    typename Block::template each<uint32_t> masks, places;
    b.phase([&](unsigned lane) {
      std::memcpy(&masks[lane], s.of + chunks_together * lane, chunks_together);
      places[lane] = static_cast<uint32_t>(popcount(masks[lane]));
      if (lane == 0) all.tell(begin, uint64_t{j.universe} * j.size, j.checks);
    });
    const uint32_t count = b.exclusive_sum(places);
    const uint64_t before = lookback(b, j.ticket + 1, tile, count);
    // The number of changes varies by lane; so all lanes together store all of them.
    b.phase([&](unsigned lane) {
      const uint32_t length = 16 / j.size;
      uint32_t to = places[lane];
      for (uint32_t left = masks[lane]; left; left &= left - 1) {
        const auto bit = static_cast<uint32_t>(countr_zero(left));
        s.place[to++] = static_cast<uint16_t>((chunks_together * lane + bit / 8) * length + bit % 8);
      }
    });
    b.phase([&](unsigned lane) {
      const auto first = static_cast<uint32_t>(begin / j.size);
      for (uint32_t k = lane; k < count; k += lanes) keep(j, before + k, first + s.place[k]);
      if (lane != 0 || begin + changes_tile < uint64_t{j.universe} * j.size) return;
      const uint64_t all = before + count, listed = all <= j.count_max ? all : 0;
      j.row->count = j.row->support_count = listed;
      j.row->unlisted = all - listed;
    });
  }

  // The masks of a lane's vectors, and its part of the sums. All loads are issued at once.
  DR_HD static chunk_sums compare(shared& s, const changes_job& j, uint64_t begin, unsigned lane) {
    const word_run base = word_run::of(j.base, j.universe, j.size), now = word_run::of(j.now, j.universe, j.size);
    four_words x[chunks_together], y[chunks_together];
#pragma unroll
    for (uint32_t k = 0; k < chunks_together; ++k) {
      const uint64_t at = begin + k * chunk_size_bytes + sizeof(four_words) * lane;
      x[k] = base.vector(at);
      y[k] = now.vector(at);
    }
    uint32_t factor[4];
    set_factors(lane, factor);
    chunk_sums own{};
#pragma unroll
    for (uint32_t k = 0; k < chunks_together; ++k) {
      own.add(k, x[k], factor, lane, words_of_chunk(begin + k * chunk_size_bytes, base.bytes));
      own.move(k, x[k], y[k], factor);
      s.of[k * lanes + lane] = differing(x[k], y[k], j.size);
    }
    return own;
  }

  DR_HD static uint8_t differing(const four_words& x, const four_words& y, uint32_t size) {
    uint32_t mask = 0;
#pragma unroll
    for (uint32_t q = 0; q < 4; ++q) {
      const uint32_t d = x.of[q] ^ y.of[q];
      if (size == 4)
        mask |= (d ? 1u : 0u) << q;
      else
        mask |= (d & 0xffff ? 1u : 0u) << 2 * q | (d >> 16 ? 2u : 0u) << 2 * q;
    }
    return static_cast<uint8_t>(mask);
  }

  // The k-th change.
  DR_HD static void keep(const changes_job& j, uint64_t k, uint32_t position) {
    if (k >= j.count_max) return;
    j.support[k] = position;
    if (j.size == 4) {
      static_cast<uint32_t*>(j.selected)[k] = static_cast<const uint32_t*>(j.now)[position];
      if (j.based) static_cast<uint32_t*>(j.based)[k] = static_cast<const uint32_t*>(j.base)[position];
    } else {
      static_cast<uint16_t*>(j.selected)[k] = static_cast<const uint16_t*>(j.now)[position];
      if (j.based) static_cast<uint16_t*>(j.based)[k] = static_cast<const uint16_t*>(j.base)[position];
    }
  }
};

}  // namespace dr
