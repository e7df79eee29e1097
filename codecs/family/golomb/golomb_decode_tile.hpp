// Split Golomb on a GPU: a payload to indices.
#pragma once

#include "codecs/family/golomb/golomb_tile.hpp"
#include "primitive/support_starts.hpp"

namespace dr {

// The table at the head of a payload, which may be at any byte.
struct golomb_table {
  const uint8_t* in;

  DR_HD uint32_t half(uint64_t b, unsigned i) const { return load_u16(in + 6 * b + 2 * i); }
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

// Before decode, if a table has more than one group: writes the bytes of the groups' bodies to scratch.
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
    const golomb_table table{input_of(job)};
    const uint64_t sum = golomb_sum_bodies(b, table, begin, end, nullptr, 0);
    auto* const groups = reinterpret_cast<uint32_t*>(a.common.scratch + uint64_t{64} * job.extra);
    b.phase([&](unsigned lane) {
      if (lane == 0) groups[group] = static_cast<uint32_t>(sum);
    });
  }
};

// in: a payload; out: count_max indices; tell: a support_starts, or NULL. Scratch: a word per group of a table that has
// several.
template <class Args>
struct golomb_decode_tile {
  using args = Args;
  using common = decltype(Args::common);
  static constexpr const char* name = common::may_cluster ? "golomb_decode" : "rice_decode";
  static constexpr unsigned lanes = golomb_lanes, grid_phases = 1, resident = common::resident;
  static constexpr uint32_t words = (common::body_max + 15) / 16 * 4;
  struct alignas(8) four_sums {
    uint16_t of[4];
  };
  // Position of a body in the payload, and its expected contents; all from the wire.
  struct source {
    uint64_t at;
    uint32_t size, base, end;
    bool clustered, sound;
  };
  struct shared {
    alignas(16) uint32_t body[words + 4];    // and words that are read after it
    four_sums zeros[common::block_max / 4];  // zeros before an index's one
    source from;
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
    const uint32_t group = place.tile / golomb_group;
    const bool has_table = place.blocks > 1 && 6 * uint64_t{place.blocks} <= head.in_size;
    const uint64_t before = has_table ? golomb_sum_bodies(b, golomb_table{input_of(job)},
                                                          uint64_t{group} * golomb_group, place.tile, groups, group)
                                      : 0;
    b.phase([&](unsigned lane) {
      if (lane == 0) s.from = find(job, head.in_size, place, before);
    });
    const source& from = s.from;
    if (from.sound && place.n > 0)
      decode(b, s, job, place, from);
    else
      b.phase([&](unsigned lane) {
        if (lane == 0) verdict(job, place, from, from.sound);
      });
  }

 private:
  // From one lane: reads the position and the expected contents of a body, and validates them. before: bytes of the bodies
  // ahead of it.
  DR_HD static source find(const tile_job& job, uint64_t in_size, const golomb_place& place, uint64_t before) {
    source from{};
    from.sound = place.blocks == 0;  // not checked: a payload has raw keys
    if (place.blocks == 0) return from;
    const uint8_t* const in = input_of(job);
    uint64_t size = 0;
    if (place.blocks == 1) {
      uint64_t varint = 0;
      const uint8_t* const behind = get_varint(in, in + in_size, varint);
      if (!behind || varint / 2 > job.universe) return from;
      from.at = static_cast<uint64_t>(behind - in);
      from.end = job.universe - static_cast<uint32_t>(varint / 2);
      from.clustered = varint & 1;
      size = in_size - from.at;
    } else {
      if (6 * uint64_t{place.blocks} > in_size) return from;
      const golomb_table table{in};
      from.at = 6 * uint64_t{place.blocks} + before;
      from.base = place.tile == 0 ? 0 : table.end(place.tile - 1);
      from.end = table.end(place.tile);
      from.clustered = table.clustered(place.tile);
      size = table.body(place.tile);
    }
    from.size = static_cast<uint32_t>(size);
    from.sound =
        from.end <= job.universe && from.end >= from.base && from.end - from.base >= place.n && from.at <= in_size &&
        size <= in_size - from.at && size <= common::body_max && (!place.last() || from.at + size == in_size) &&
        (!from.clustered || (common::may_cluster && common::code(from.end - from.base, place.n, false).divisor > 1));
    return from;
  }

  template <class Block>
  DR_HD static void decode(Block& b, shared& s, const tile_job& job, const golomb_place& place, const source& from) {
    const uint32_t n = place.n, length = golomb_lane_length(n);
    const uint32_t &base = from.base, &end = from.end;  // (in shared memory: as copies they take registers)
    const golomb_split split = golomb_split::of(common::code(end - base, n, from.clustered));
    const uint32_t low_bits = n * split.low_bits, low = (low_bits + 7) / 8, behind = 8 * from.size;

    // Unary strings are at most n + (span - n) / M bits long.
    const uint32_t rest = low <= from.size ? 8 * (from.size - low) : 0,
                   unary_max = n + (end - base - n) / split.divisor;
    const uint32_t unary_at = behind - rest, unary_end = unary_at + (rest < unary_max ? rest : unary_max);
    const uint32_t first_word = unary_at / 32, end_word = (unary_end + 31) / 32;
    const uint32_t lane_words = (end_word - first_word + lanes - 1) / lanes;
    const auto ones = [&](uint32_t w) {
      uint32_t word = s.body[w];
      if (w == first_word) word &= ~0u << unary_at % 32;
      if (w == end_word - 1 && unary_end % 32) word &= ~(~0u << unary_end % 32);
      return word;
    };
    const auto v = [&](uint32_t i) { return bits_at(s.body, i * split.low_bits, split.low_bits); };

    b.phase([&](unsigned lane) { load_string(input_of(job) + from.at, from.size, s.body, lane, lanes); });
    typename Block::template each<uint32_t> before;  // ones and, from bit 16 on, extra bits: both below 2^16
    b.phase([&](unsigned lane) {
      uint32_t sum = 0;
      for (uint32_t i = 0; i < lane_words; ++i)
        if (const uint32_t w = first_word + lane * lane_words + i; w < end_word) sum += popcount(ones(w));
      DR_UNROLL
      for (unsigned j = 0; j < common::lane_max; ++j) {
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
    // The remainder of index i of a lane, and the next extra bits of this lane.
    const auto extras = [&](unsigned lane) {
      const uint32_t at = unary_at + (s.unary_bits + 7) / 8 * 8 + (before[lane] >> 16);
      return bits_at(s.body, at < behind ? at : behind, 32);
    };
    const auto remainder = [&](uint32_t i, uint32_t& extra) {
      uint32_t r = v(i);
      if (r >= split.short_low) {
        r = 2 * r + (extra & 1) - split.short_low;
        extra >>= 1;
      }
      return r;
    };
    typename Block::template each<uint32_t> remainders;
    b.phase([&](unsigned lane) {
      uint32_t extra = extras(lane), sum = 0;
      DR_UNROLL
      for (unsigned j = 0; j < common::lane_max; ++j) {
        if (j >= length || lane * length + j >= n) continue;
        sum += remainder(lane * length + j, extra);
      }
      remainders[lane] = sum;
    });
    // Exact: r < M, and n·M < 2^32 (rice: at most √2·(0.6932·span + 0.16·n)).
    const uint32_t all_remainders = b.exclusive_sum(remainders);

    b.phase([&](unsigned lane) {
      auto* const x = static_cast<uint32_t*>(job.out) + place.first();
      // (Computed again: kept, they would take the registers of further blocks.)
      uint32_t extra = extras(lane), begin = base + remainders[lane] + lane * length;
      DR_UNROLL
      for (unsigned j = 0; j < common::lane_max; j += 4) {
        const uint32_t i = lane * length + j;
        if (j >= length || i >= n) continue;
        const four_sums zeros = s.zeros[i / 4];
        four_words four;
        DR_UNROLL
        for (unsigned l = 0; l < 4; ++l) {
          if (i + l < n) begin += remainder(i + l, extra);
          four.of[l] = begin++ + split.divisor * zeros.of[l];
        }
        store_four(x, i, n, four);
      }
      if (lane != 0) return;
      const auto* const body = reinterpret_cast<const uint8_t*>(s.body);
      const uint32_t unary_bits = s.unary_bits, extra_bits = found >> 16, unary = (unary_bits + 7) / 8;
      const uint64_t quotients = s.zeros[(n - 1) / 4].of[(n - 1) % 4];
      verdict(job, place, from,
              low + unary + (extra_bits + 7) / 8 == from.size && padding_is_zero(body, low_bits) &&
                  padding_is_zero(body + low, unary_bits) && padding_is_zero(body + low + unary, extra_bits) &&
                  base + split.divisor * quotients + all_remainders + n == end);
    });
    if (job.tell) list(b, job, place, base);
  }

  // Where the output's tiles begin, from the indices that the lanes have written.
  template <class Block>
  DR_HD static void list(Block& b, const tile_job& job, const golomb_place& place, uint32_t base) {
    b.phase([&](unsigned lane) {
      const auto* const x = static_cast<const uint32_t*>(job.out) + place.first();
      static_cast<const support_starts*>(job.tell)->list(x, place.n, place.first(), base - 1, place.last(), lane,
                                                         lanes);
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
