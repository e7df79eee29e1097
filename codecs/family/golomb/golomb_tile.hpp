// Split Golomb on a GPU: a block of lanes codes a block of indices (layout: codecs/index/golomb/SPEC.md; reference:
// golomb.hpp). Positions come from prefix sums, so no loop runs over bits. A lane has consecutive indices, which keeps
// its bits together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/family/golomb/golomb.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"

#if defined(__CUDACC__)
// The values of a lane stay in registers.
#define DR_UNROLL _Pragma("unroll")
#define DR_ROLL _Pragma("unroll 1")
#else
#define DR_UNROLL
#define DR_ROLL
#endif

namespace dr {

inline constexpr unsigned golomb_lanes = 512;

// Bytes of a valid body, for any divisor: n·(k + 2) bits and (span − n) / M for the quotients, with a = span/n at
// most log2(a) + 2.92 bits an index (golomb_bound; log2(a) + 2.8 if clustered and M >= 7, for that is at least 7/16 of
// the plain one, and 6.5 bits below). n·(log2(span/n) + 2.92) grows with n, and 2^13 indices below 2^32 have 21.92
// each. The unit test walks.
constexpr uint32_t golomb_body_max(unsigned block_log2) { return (1u << block_log2) * 22 / 8 + 3; }
static_assert(golomb_body_max(golomb_block_log2_max) < golomb_flag);

// Table entries that a tile of decode adds up itself. Of a longer table, golomb_sum_groups adds up whole groups before.
inline constexpr uint32_t golomb_group = 1024;

// Blocks of at most 2^Log2 indices. (Those of 2^12, the default, need half of the registers and of the shared memory that
// the largest have, so more of them run at once.)
template <const divisor_rule& rule, unsigned Log2>
struct golomb_common {
  std::byte* scratch;  // a job's begins 64 · extra in
  uint32_t block_log2;

  static constexpr bool may_cluster = rule.may_cluster;
  static constexpr unsigned block_max = 1u << Log2;
  static constexpr unsigned lane_max = block_max / golomb_lanes;  // indices of a lane
  static constexpr uint32_t body_max = golomb_body_max(Log2);
  static constexpr unsigned resident = Log2 > golomb_block_log2 ? 2 : 3;  // blocks on a multiprocessor
  // Device code knows no host constant; its value it does.
  DR_HD static constexpr golomb_code code(uint64_t span, uint64_t n, bool clustered) {
    constexpr divisor_rule own = rule;
    return own.code(span, n, clustered);
  }
};

// golomb_code for lanes: 32 bits will do, for M < 2^32 · ln 2 (rice: 2^31) and s < M.
struct golomb_split {
  uint32_t divisor, reciprocal, low_bits;
  uint32_t short_low;  // 1 for M = 1: no remainder has an extra bit

  DR_HD static golomb_split of(const golomb_code& c) {
    const auto m = static_cast<uint32_t>(c.divisor);
    return {m, ~0u / m, c.low_bits, m == 1 ? 1 : static_cast<uint32_t>(c.short_low)};
  }
  struct parts {
    uint32_t q, r;
  };
  // 2^32/M − 1 <= reciprocal <= 2^32/M, so gap · reciprocal / 2^32 is less than 1 below gap / M, and its floor at most
  // 1.
  DR_HD parts operator()(uint32_t gap) const {
    parts p;
    p.q = static_cast<uint32_t>(uint64_t{gap} * reciprocal >> 32);
    p.r = gap - p.q * divisor;
    if (p.r >= divisor) {
      ++p.q;
      p.r -= divisor;
    }
    return p;
  }
  // Sums of q and of extra bits, of a whole block below 2^16 each: 2^13 indices have quotients of 4.55 · 2^13 at most
  // (M = 1 clustered where 3 was plain, so a < 5.55).
  DR_HD uint32_t cost(uint32_t gap) const {
    const parts p = (*this)(gap);
    return p.q | static_cast<uint32_t>(p.r >= short_low) << 16;
  }
};

// Bytes of a body's strings, from its indices and its cost.
struct golomb_layout {
  uint32_t low, unary, extra;

  DR_HD static golomb_layout of(const golomb_split& split, uint32_t n, uint32_t cost) {
    return {(n * split.low_bits + 7) / 8, (n + (cost & 0xffff) + 7) / 8, ((cost >> 16) + 7) / 8};
  }
  DR_HD uint32_t size() const { return low + unary + extra; }
};

// A lane's state per index.
template <unsigned N>
struct golomb_lane {
  uint32_t of[N];
};

// Indices per lane of a block of n, a multiple of 4 so that four are coded at once.
DR_HD inline uint32_t golomb_lane_length(uint32_t n) { return (n + 4 * golomb_lanes - 1) / (4 * golomb_lanes) * 4; }

// Tiles of a job; at least one, because a tile must report an empty job, too.
DR_HD inline uint32_t golomb_tiles(uint64_t count_max, unsigned block_log2) {
  return count_max == 0 ? 1 : static_cast<uint32_t>(((count_max - 1) >> block_log2) + 1);
}

// One lane reads it for all: other tiles may raise a fault at any time, and all lanes must take the same branch.
struct golomb_head {
  uint64_t count, in_size;
  uint32_t tile;
  bool live;

  template <class Block, class Size, class Tile>
  DR_HD static golomb_head read(Block& b, const tile_job& job, Size&& in_size, Tile&& tile) {
    return b.template once<golomb_head>([&] {
      golomb_head h;
      const uint64_t count = job.count ? *job.count : job.count_max;
      h.in_size = in_size();
      h.live = job.fault->code == DR_OK;
      h.tile = tile();
      h.count = count < job.count_max ? count : job.count_max;
      return h;
    });
  }
};

// A tile's place: n indices, from `first` of its job on; the last of the job's blocks or not.
struct golomb_place {
  uint32_t blocks, tile, n, block_log2;

  DR_HD static golomb_place of(const golomb_head& head, unsigned block_log2) {
    const uint64_t block = uint64_t{1} << block_log2, first = head.tile * block;
    const uint64_t rest = head.count > first ? head.count - first : 0;
    return {static_cast<uint32_t>((head.count + block - 1) >> block_log2), head.tile,
            static_cast<uint32_t>(rest < block ? rest : block), block_log2};
  }
  DR_HD uint64_t first() const { return uint64_t{tile} << block_log2; }
  DR_HD uint64_t end() const { return first() + n; }  // of the last tile: the count
  DR_HD bool last() const { return tile + 1 >= blocks; }
};

}  // namespace dr
