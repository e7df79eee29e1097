// Split Golomb on a GPU: a block of lanes takes a block of indices (layout: codecs/index/golomb/SPEC.md; the truth: golomb.hpp).
// Positions come from prefix sums, so no loop runs over bits. A lane has consecutive indices, which keeps its bits together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/family/golomb/golomb.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_job.hpp"

#if defined(__CUDACC__)
// What a lane holds stays in registers, of which there are few: 64, for two blocks on an SM.
#define DR_UNROLL _Pragma("unroll")
#define DR_ROLL _Pragma("unroll 1")
#else
#define DR_UNROLL
#define DR_ROLL
#endif

namespace dr {

inline constexpr unsigned golomb_lanes = 512;
inline constexpr unsigned golomb_lane_max = (1u << golomb_block_log2_max) / golomb_lanes;  // indices of a lane

// Bytes of a sound body, whatever the divisor: n·(k + 2) bits and (span − n) / M for the quotients, with a = span/n at most
// log2(a) + 2.92 bits an index (golomb_bound; log2(a) + 2.8 if clustered and M >= 7, for that is at least 7/16 of the plain one,
// and 6.5 bits below). n·(log2(span/n) + 2.92) grows with n, and 2^13 indices below 2^32 have 21.92 each. The unit test walks.
inline constexpr uint32_t golomb_body_max = (1u << golomb_block_log2_max) * 22 / 8 + 3;
static_assert(golomb_body_max < golomb_flag);

// Table entries that a tile of decode adds up itself. Of a longer table, golomb_sum_groups adds up whole groups before.
inline constexpr uint32_t golomb_group = 1024;

template <const divisor_rule& rule>
struct golomb_common {
  std::byte* scratch;  // a job's begins 64 · extra in
  uint32_t block_log2;

  static constexpr bool may_cluster = rule.may_cluster;
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
  // 2^32/M − 1 <= reciprocal <= 2^32/M, so gap · reciprocal / 2^32 is less than 1 below gap / M, and its floor at most 1.
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

// What a lane keeps of each of its indices.
struct golomb_lane {
  uint32_t of[golomb_lane_max];
};

// Indices of each lane of a block of n, a multiple of 4 so that four go at once.
DR_HD inline uint32_t golomb_lane_length(uint32_t n) { return (n + 4 * golomb_lanes - 1) / (4 * golomb_lanes) * 4; }

// Tiles of a job; of none too, for somebody must say so.
DR_HD inline uint32_t golomb_tiles(uint64_t count_max, unsigned block_log2) {
  return count_max == 0 ? 1 : static_cast<uint32_t>(((count_max - 1) >> block_log2) + 1);
}

// What one lane reads for all: other tiles may raise a fault at any time, and all lanes must go the same way.
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

// ---- Encode ---------------------------------------------------------------------------------------------------

// Bits into zeroed words of shared memory; none at `end` and behind, where only indices that do not ascend would get.
class golomb_bits {
 public:
  DR_HD golomb_bits(uint32_t* words, uint32_t end, uint32_t bit)
      : words_(words), end_(end), word_(bit / 32), fill_(bit % 32) {}

  DR_HD void put(uint32_t value, unsigned bits) {  // value < 2^bits, bits <= 32
    const uint64_t both = uint64_t{value} << fill_;
    held_ |= static_cast<uint32_t>(both);
    fill_ += bits;
    if (fill_ < 32) return;
    finish();
    held_ = static_cast<uint32_t>(both >> 32);
    ++word_;
    fill_ -= 32;
  }
  DR_HD void put_unary(uint32_t zeros) {
    fill_ += zeros;
    if (fill_ >= 32) {
      finish();
      held_ = 0;
      word_ += fill_ / 32;
      fill_ %= 32;
    }
    put(1, 1);
  }
  DR_HD void finish() const {
    if (held_ && word_ < end_) atomic_or(words_ + word_, held_);
  }

 private:
  uint32_t* words_;
  uint32_t end_, word_, fill_, held_ = 0;
};

// in: indices; out: `key` bytes. Scratch of a job with several tiles: a look-back state each and a ticket, all zero.
template <class Args>
struct golomb_encode_tile {
  using args = Args;
  using common = decltype(Args::common);
  static constexpr const char* name = common::may_cluster ? "golomb_encode" : "rice_encode";
  static constexpr unsigned lanes = golomb_lanes, grid_phases = 1;
  static constexpr uint32_t words = (golomb_body_max + 15) / 16 * 4;
  struct shared {
    alignas(16) uint32_t body[words + 4];  // and a word that is looked at behind
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
    if (!head.live) return;
    const golomb_place place = golomb_place::of(head, block_log2);
    if (place.n > 0)
      encode(b, s, job, place, state);
    else if (place.tile == 0)
      b.phase([&](unsigned lane) {
        if (lane == 0) finish(job, 0, 0);
      });
  }

 private:
  // What the encoder chooses from.
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
      golomb_lane indices;
      DR_UNROLL
      for (unsigned j = 0; j < golomb_lane_max; j += 4) {
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
      for (unsigned j = 0; j < golomb_lane_max; ++j) {
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
      // What look-back will say is said as early as it is known.
      if (lane == 0 && place.blocks > 1)
        store_release(state + place.tile, uint64_t{body} << 2 | (place.tile == 0 ? 3 : 1));
      const uint32_t first = lane * length;
      if (first >= n) return;
      const auto before = static_cast<uint32_t>(clustered ? costs[lane] >> 32 : costs[lane]);
      golomb_bits low(s.body, words, first * split.low_bits);
      golomb_bits unary(s.body, words, 8 * layout.low + first + (before & 0xffff));
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
      golomb_bits extra_bits(s.body, words, 8 * (layout.low + layout.unary) + (before >> 16));
      extra_bits.put(extra, extras);
      extra_bits.finish();
    });

    const bool lone = place.blocks == 1;
    const uint64_t varint = 2 * (uint64_t{job.universe} - end) + clustered;
    const uint64_t at = lone ? (varint ? (bit_width(varint) + 6) / 7 : 1)
                             : 6 * uint64_t{place.blocks} + lookback(b, state, place.tile, body);
    auto* const out = static_cast<uint8_t*>(job.out);
    b.phase([&](unsigned lane) {
      if (body <= golomb_body_max && at + body <= job.key) copy(s.body, body, out + at, lane);
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

  // Whole words of `to` in words; of those that it shares with its neighbours its own bytes.
  DR_HD static void copy(const uint32_t* body, uint32_t size, uint8_t* to, unsigned lane) {
    const auto over = static_cast<uint32_t>((0 - reinterpret_cast<uintptr_t>(to)) % 4);
    const uint32_t front = over < size ? over : size, middle = (size - front) / 4, rear = front + 4 * middle;
    for (uint32_t i = lane; i < middle; i += lanes)
      reinterpret_cast<uint32_t*>(to + front)[i] = funnel(body[i], body[i + 1], 8 * front);
    const auto byte = [&](uint32_t i) { to[i] = static_cast<uint8_t>(body[i / 4] >> (8 * (i % 4))); };
    if (lane < front) byte(lane);
    if (lane < size - rear) byte(rear + lane);
  }
};

// ---- Decode ---------------------------------------------------------------------------------------------------

// The table at the head of a payload: entries lie at multiples of 2.
struct golomb_table {
  const uint8_t* in;

  DR_HD uint32_t half(uint64_t b, unsigned i) const { return reinterpret_cast<const uint16_t*>(in + 6 * b)[i]; }
  DR_HD uint32_t end(uint64_t b) const { return half(b, 0) | half(b, 1) << 16; }
  DR_HD uint32_t body(uint64_t b) const { return half(b, 2) & (golomb_flag - 1u); }
  DR_HD bool clustered(uint64_t b) const { return half(b, 2) & golomb_flag; }
};

// Bytes of the bodies [begin, end).
template <class Block>
DR_HD uint64_t golomb_sum_bodies(Block& b, golomb_table table, uint64_t begin, uint64_t end, const uint32_t* groups,
                                 uint64_t group) {
  typename Block::template each<uint64_t> sums;
  b.phase([&](unsigned lane) {
    uint64_t sum = 0;
    for (uint64_t i = begin + lane; i < end; i += Block::lanes) sum += table.body(i);
    for (uint64_t g = lane; g < group; g += Block::lanes) sum += groups[g];
    sums[lane] = sum;
  });
  return b.sum(sums);
}

// Before decode, where a table has more than a group: the bytes of each group's bodies, to scratch.
template <class Args>
struct golomb_sum_groups {
  using args = Args;
  using common = decltype(Args::common);
  static constexpr const char* name = common::may_cluster ? "golomb_sum_groups" : "rice_sum_groups";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint32_t group = b.index() - job.first_tile;
    const golomb_head head = golomb_head::read(
        b, job, [&] { return *job.in_size; }, [&] { return group; });
    const uint64_t blocks = (head.count + (uint64_t{1} << a.common.block_log2) - 1) >> a.common.block_log2;
    const uint64_t begin = uint64_t{group} * golomb_group, rest = blocks > begin ? blocks - begin : 0;
    if (!head.live || rest == 0 || 6 * blocks > head.in_size) return;
    const uint64_t end = begin + (rest < golomb_group ? rest : golomb_group);
    const golomb_table table{static_cast<const uint8_t*>(job.in)};
    const uint64_t sum = golomb_sum_bodies(b, table, begin, end, nullptr, 0);
    auto* const groups = reinterpret_cast<uint32_t*>(a.common.scratch + uint64_t{64} * job.extra);
    b.phase([&](unsigned lane) {
      if (lane == 0) groups[group] = static_cast<uint32_t>(sum);
    });
  }
};

// in: a payload; out: count_max indices. Scratch: a word for each group of a table that has several.
template <class Args>
struct golomb_decode_tile {
  using args = Args;
  using common = decltype(Args::common);
  static constexpr const char* name = common::may_cluster ? "golomb_decode" : "rice_decode";
  static constexpr unsigned lanes = golomb_lanes, grid_phases = 1;
  static constexpr uint32_t words = (15 + golomb_body_max + 15) / 16 * 4;
  struct alignas(8) four_sums {
    uint16_t of[4];
  };
  struct shared {
    alignas(16) uint32_t body[words + 4];                // and words that are looked at behind
    four_sums zeros[(1u << golomb_block_log2_max) / 4];  // before the one of each index
    uint32_t unary_bits;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint32_t own = b.index() - job.first_tile;
    const golomb_head head = golomb_head::read(
        b, job, [&] { return *job.in_size; }, [&] { return own; });
    const golomb_place place = golomb_place::of(head, a.common.block_log2);
    if (!head.live || (own > 0 && place.n == 0)) return;
    const auto* const groups = reinterpret_cast<const uint32_t*>(a.common.scratch + uint64_t{64} * job.extra);
    source from{};
    if (place.blocks == 0)
      from.sound = head.in_size == 0;
    else if (place.blocks == 1)
      read_lone(job, head.in_size, place, from);
    else
      read_table(b, job, head.in_size, place, groups, from);
    if (from.sound && place.n > 0)
      decode(b, s, job, place, from);
    else
      b.phase([&](unsigned lane) {
        if (lane == 0) verdict(job, place, from, from.sound);
      });
  }

 private:
  // Where a body lies in the payload and what it is to hold; all from the wire.
  struct source {
    uint64_t at;
    uint32_t size, base, end;
    bool clustered, sound;
  };

  // Both read where a body lies and what it is to hold, and judge it.
  DR_HD static void read_lone(const tile_job& job, uint64_t in_size, const golomb_place& place, source& from) {
    const auto* const in = static_cast<const uint8_t*>(job.in);
    uint64_t varint = 0;
    const uint8_t* const behind = get_varint(in, in + in_size, varint);
    if (!behind || varint / 2 > job.universe) return;
    from.at = static_cast<uint64_t>(behind - in);
    from.end = job.universe - static_cast<uint32_t>(varint / 2);
    from.clustered = varint & 1;
    judge(job, in_size, in_size - from.at, place, from);
  }
  template <class Block>
  DR_HD static void read_table(Block& b, const tile_job& job, uint64_t in_size, const golomb_place& place,
                               const uint32_t* groups, source& from) {
    if (6 * uint64_t{place.blocks} > in_size) return;
    const golomb_table table{static_cast<const uint8_t*>(job.in)};
    const uint32_t group = place.tile / golomb_group, size = table.body(place.tile);
    from.base = place.tile == 0 ? 0 : table.end(place.tile - 1);
    from.end = table.end(place.tile);
    from.clustered = table.clustered(place.tile);
    from.at = 6 * uint64_t{place.blocks} +
              golomb_sum_bodies(b, table, uint64_t{group} * golomb_group, place.tile, groups, group);
    judge(job, in_size, size, place, from);
    from.sound = from.sound && (!place.last() || from.at + size == in_size);
  }
  DR_HD static void judge(const tile_job& job, uint64_t in_size, uint64_t size, const golomb_place& place,
                          source& from) {
    from.size = static_cast<uint32_t>(size);
    from.sound =
        from.end <= job.universe && from.end >= from.base && from.end - from.base >= place.n && from.at <= in_size &&
        size <= in_size - from.at && size <= golomb_body_max &&
        (!from.clustered || (common::may_cluster && common::code(from.end - from.base, place.n, false).divisor > 1));
  }

  template <class Block>
  DR_HD static void decode(Block& b, shared& s, const tile_job& job, const golomb_place& place, const source& from) {
    const uint32_t n = place.n, length = golomb_lane_length(n), base = from.base, end = from.end;
    const golomb_split split = golomb_split::of(common::code(end - base, n, from.clustered));
    const uint32_t ahead = static_cast<uint32_t>(from.at % 16),
                   behind = 8 * (ahead + from.size);  // s.body: from in[at - ahead] on
    const uint32_t low_bits = n * split.low_bits, low = (low_bits + 7) / 8;

    // Unary strings are at most n + (span - n) / M bits long.
    const uint32_t rest = low <= from.size ? 8 * (from.size - low) : 0, most = n + (end - base - n) / split.divisor;
    const uint32_t unary_at = behind - rest, unary_end = unary_at + (rest < most ? rest : most);
    const uint32_t first_word = unary_at / 32, end_word = (unary_end + 31) / 32;
    const uint32_t lane_words = (end_word - first_word + lanes - 1) / lanes;
    const auto ones = [&](uint32_t w) {
      uint32_t word = s.body[w];
      if (w == first_word) word &= ~0u << unary_at % 32;
      if (w == end_word - 1 && unary_end % 32) word &= ~(~0u << unary_end % 32);
      return word;
    };
    const auto v = [&](uint32_t i) { return bits_at(s.body, 8 * ahead + i * split.low_bits, split.low_bits); };

    b.phase([&](unsigned lane) {
      const auto* const in = reinterpret_cast<const four_words*>(static_cast<const uint8_t*>(job.in) + from.at - ahead);
      for (uint32_t i = lane; i < (behind + 127) / 128; i += lanes) reinterpret_cast<four_words*>(s.body)[i] = in[i];
    });
    typename Block::template each<uint32_t> before;  // ones and, from bit 16 on, extra bits: both below 2^16
    b.phase([&](unsigned lane) {
      uint32_t sum = 0;
      for (uint32_t i = 0; i < lane_words; ++i)
        if (const uint32_t w = first_word + lane * lane_words + i; w < end_word) sum += popcount(ones(w));
      DR_UNROLL
      for (unsigned j = 0; j < golomb_lane_max; ++j) {
        const uint32_t i = lane * length + j;
        if (j >= length || i >= n || low > from.size) continue;
        sum += static_cast<uint32_t>(v(i) >= split.short_low) << 16;
      }
      before[lane] = sum;
    });
    const uint32_t found = b.exclusive_sum(before);
    if (low > from.size || (found & 0xffff) < n) {
      b.phase([&](unsigned lane) {
        if (lane == 0) verdict(job, place, from, false);
      });
      return;
    }

    b.phase([&](unsigned lane) {
      uint32_t index = before[lane] & 0xffff;
      for (uint32_t i = 0; i < lane_words; ++i) {
        const uint32_t w = first_word + lane * lane_words + i;
        if (w >= end_word) break;
        for (uint32_t word = ones(w); word && index < n; word &= word - 1, ++index) {
          const uint32_t bit = 32 * w + countr_zero(word) - unary_at;
          s.zeros[index / 4].of[index % 4] = static_cast<uint16_t>(bit - index);
          if (index == n - 1) s.unary_bits = bit + 1;
        }
      }
    });
    typename Block::template each<golomb_lane> rests;  // remainders, summed up within the lane
    typename Block::template each<uint32_t> remainders;
    b.phase([&](unsigned lane) {
      const uint32_t at = unary_at + (s.unary_bits + 7) / 8 * 8 + (before[lane] >> 16);
      uint32_t extra = bits_at(s.body, at < behind ? at : behind, 32), sum = 0;
      DR_UNROLL
      for (unsigned j = 0; j < golomb_lane_max; ++j) {
        if (j >= length || lane * length + j >= n) continue;
        uint32_t r = v(lane * length + j);
        if (r >= split.short_low) {
          r = 2 * r + (extra & 1) - split.short_low;
          extra >>= 1;
        }
        rests[lane].of[j] = sum += r;
      }
      remainders[lane] = sum;
    });
    // Exact: r < M, and n·M < 2^32 (rice: at most √2·(0.6932·span + 0.16·n)).
    const uint32_t all_remainders = b.exclusive_sum(remainders);

    b.phase([&](unsigned lane) {
      auto* const x = static_cast<uint32_t*>(job.out) + place.first();
      DR_UNROLL
      for (unsigned j = 0; j < golomb_lane_max; j += 4) {
        const uint32_t i = lane * length + j;
        if (j >= length || i >= n) continue;
        const four_sums zeros = s.zeros[i / 4];
        const uint32_t begin = base + remainders[lane] + i;
        four_words four;
        DR_UNROLL
        for (unsigned l = 0; l < 4; ++l) four.of[l] = begin + l + split.divisor * zeros.of[l] + rests[lane].of[j + l];
        store_four(x, i, n, four);
      }
      if (lane != 0) return;
      const auto* const body = reinterpret_cast<const uint8_t*>(s.body) + ahead;
      const uint32_t unary_bits = s.unary_bits, extra_bits = found >> 16, unary = (unary_bits + 7) / 8;
      const uint64_t quotients = s.zeros[(n - 1) / 4].of[(n - 1) % 4];
      verdict(job, place, from,
              low + unary + (extra_bits + 7) / 8 == from.size && padding_is_zero(body, low_bits) &&
                  padding_is_zero(body + low, unary_bits) && padding_is_zero(body + low + unary, extra_bits) &&
                  base + split.divisor * quotients + all_remainders + n == end);
    });
  }

  // From one lane.
  DR_HD static void verdict(const tile_job& job, const golomb_place& place, const source& from, bool sound) {
    if (!sound)
      raise(job.fault, DR_E_CORRUPT, DR_STREAM_INDEX, from.at, place.end());
    else if (place.last())
      *job.out_size = 4 * place.end();
  }
};

}  // namespace dr
