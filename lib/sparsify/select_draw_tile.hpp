// Positions by chance: those of the first draws of which as many differ as are selected (Random-k).
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/lookback.hpp"
#include "primitive/rng.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

// All of r draws are needed before r of them can differ, in whatever order they are made: a round makes as many as are
// missing, and counts those that hit a position for the first time. A launch a round; the last round's last block makes
// the few that are still missing then.
inline constexpr uint32_t draw_rounds_max = 8;
inline constexpr uint32_t draw_tile = 2048;

// Zero when a call begins.
struct draw_state {
  uint64_t begin[draw_rounds_max];  // draws before those of a round
  uint32_t left[draw_rounds_max];   // that are missing then; the first round's are of the job
  uint32_t found[draw_rounds_max], done[draw_rounds_max];
};
static_assert(sizeof(draw_state) == 160);

// floor(x * d / 2^64).
DR_HD constexpr uint32_t drawn_place(uint64_t x, uint32_t d) {
  return static_cast<uint32_t>(((x >> 32) * d + ((x & 0xffffffff) * d >> 32)) >> 32);
}

struct draw_common {
  uint32_t round, rounds;
};

// job.in: the key of the tensor; job.key: what is combined with it; job.out: a bit for each of job.universe positions;
// job.tell: the state; job.extra: positions to draw.
template <class Args>
struct select_draw {
  static constexpr const char* name = "select_draw";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint32_t round = a.common.round, tile = b.index() - job.first_tile,
                   tiles = (&job + 1 < a.job + a.jobs ? (&job)[1].first_tile : a.tiles) - job.first_tile;
    auto& state = *static_cast<draw_state*>(job.tell);
    const uint64_t begin = round ? state.begin[round] : 0;
    const uint32_t left = round ? state.left[round] : job.extra;
    if (left == 0) return;  // the same for all blocks of a job
    const uint64_t key = combine(*static_cast<const uint64_t*>(job.in), job.key);
    typename Block::template each<uint32_t> fresh;
    b.phase([&](unsigned lane) { fresh[lane] = draw_some(job, key, begin, tile * lanes + lane, tiles * lanes, left); });
    const uint32_t own = b.sum(fresh);
    b.phase([&](unsigned lane) {
      if (lane == 0) atomic_add(&state.found[round], own);
    });
    if (!last_of(b, &state.done[round], tiles)) return;
    uint32_t missing = left - b.template once<uint32_t>([&] { return atomic_add(&state.found[round], 0u); });
    uint64_t next = begin + left;
    if (round + 1 < a.common.rounds) {
      b.phase([&](unsigned lane) {
        if (lane != 0) return;
        state.begin[round + 1] = next;
        state.left[round + 1] = missing;
      });
      return;
    }
    while (missing) {
      b.phase([&](unsigned lane) { fresh[lane] = draw_some(job, key, next, lane, lanes, missing); });
      next += missing;
      missing -= b.sum(fresh);
    }
  }

  // Makes the draws begin + first, begin + first + step, … of `n`; returns how many hit a position for the first time.
  DR_HD static uint32_t draw_some(const tile_job& job, uint64_t key, uint64_t begin, uint32_t first, uint32_t step,
                                  uint32_t n) {
    auto* const bits = static_cast<uint32_t*>(job.out);
    uint32_t found = 0;
    for (uint64_t i = first; i < n; i += step) {
      const uint32_t at = drawn_place(draw(key, begin + i), job.universe);
      if (at >= job.universe) continue;
      found += !(atomic_or(bits + at / 32, 1u << at % 32) >> at % 32 & 1);
    }
    return found;
  }
};

}  // namespace dr
