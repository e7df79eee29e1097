// Values of a codec whose levels are a table, on a GPU: a block of lanes takes 4096 of them to levels and signs, and in a
// later launch to the payload (reference: table_levels.hpp).
#pragma once

#include <cstdint>

#include "codecs/family/levels/table_encode_tile.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

DR_HD inline uint32_t float_bits(uint32_t dtype, const void* values, uint64_t i) {
  return std::bit_cast<uint32_t>(value_at(dtype, values, i));
}

// What a block knows of its job: the number of values, and its own.
struct table_part {
  uint64_t n, begin;
  uint32_t length, blocks;

  DR_HD static table_part of(const tile_job& job, uint32_t block) {
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{block} * level_block;
    const uint64_t rest = n > begin ? n - begin : 0;
    return {n, begin, static_cast<uint32_t>(rest < level_block ? rest : level_block),
            static_cast<uint32_t>(level_blocks(n))};
  }
};

struct table_quantise_shared {
  alignas(16) four_words code[table_lanes];  // bytes: level, and the sign as the highest bit
  uint32_t bound[table_levels_max], count[table_levels_max];
};

// Levels to scratch [level_block], signs to the payload, counts of sampled levels to the job's.
//   bounds   of `levels` levels, a power of two (level_bounds)
//   signs    of all values of the job
//   zeros    of each lane, how many of its levels are 0
template <class Block>
DR_HD void quantise_table_block(Block& b, table_quantise_shared& s, const uint32_t& dtype, const void* const& values,
                                const table_part& part, const uint32_t* const& bounds, const uint32_t& levels,
                                uint8_t* const& to, uint8_t* const& signs, uint32_t* const& counts,
                                typename Block::template each<uint32_t>& zeros) {
  constexpr unsigned own = lane_levels_max;
  const level_sample sample = level_sample::of(part.n);
  b.phase([&](unsigned lane) {
    if (lane >= table_levels_max) return;
    if (lane + 1 < levels) s.bound[lane] = bounds[lane];
    s.count[lane] = 0;
  });
  b.phase([&](unsigned lane) {
    auto* const codes = reinterpret_cast<uint8_t*>(s.code);
    for (uint32_t i = lane; i < level_block; i += table_lanes) {
      uint32_t level = 0, sign = 0;
      if (i < part.length) {
        const uint32_t v = float_bits(dtype, values, part.begin + i), m = v & f32_type::magnitude_mask;
        sign = v >> 31;
        for (uint32_t half = levels / 2; half > 0; half /= 2) level += m >= s.bound[level + half - 1] ? half : 0;
        if (!sample.is_part() || (part.begin + i) % level_sample::apart < level_sample::group)
          atomic_add(&s.count[level], 1u);
      }
      codes[i] = static_cast<uint8_t>(level | sign << 7);
    }
  });
  b.phase([&](unsigned lane) {
    four_words codes = s.code[lane];
    uint32_t sign = 0, at_zero = 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const uint32_t high = codes.of[k] & 0x80808080;
      sign |= ((high >> 7) * 0x10204080 >> 28) << (4 * k);  // four bits side by side
      codes.of[k] ^= high;
    }
    for (unsigned j = 0; j < own; ++j)
      at_zero += lane * own + j < part.length && (codes.of[j / 4] >> (j % 4 * 8) & 0xff) == 0;
    zeros[lane] = at_zero;
    reinterpret_cast<four_words*>(to)[lane] = codes;
    for (unsigned k = 0; k < 2; ++k)
      if (lane * own + 8 * k < part.length)
        signs[part.begin / 8 + 2 * lane + k] = static_cast<uint8_t>(sign >> (8 * k));
    if (lane < table_levels_max && s.count[lane]) atomic_add(&counts[lane], s.count[lane]);
  });
}

// The block that a block of lanes codes, of a job of up to count_max rows. state: of look-back, then a ticket.
template <class Block>
DR_HD uint32_t take_table_block(Block& b, const tile_job& job, uint64_t* state) {
  const auto tiles = static_cast<uint32_t>(level_blocks(uint64_t{job.count_max} * job.width));
  return tiles <= 1 ? 0 : take_tile(b, reinterpret_cast<uint32_t*>(state + tiles));
}

// Codes the levels of a block behind `head` bytes and the signs; or its values, where the payload would be longer.
template <class Block>
DR_HD void put_table_values(Block& b, table_encode_shared& s, const tile_job& job, const uint32_t& dtype,
                            const table_part& part, const uint32_t& block, uint64_t* state,
                            const uint8_t* const& scratch, const table_code& code, const uint32_t& count,
                            uint64_t head) {
  auto* const out = static_cast<uint8_t*>(job.out);
  const level_target to{out, head + ceil_div(part.n, 8), job.key, part.n, state};
  typename Block::template each<lane_levels> levels;
  b.phase([&](unsigned lane) {
    levels[lane].bytes = reinterpret_cast<const four_words*>(scratch + part.begin)[lane];
    for (uint32_t i = lane; i < table_encode_shared::words + 2; i += Block::lanes) s.body[i] = 0;
    if (lane < table_levels_max) s.word[lane] = code.words[lane];
  });
  const uint64_t end = put_table_block(b, s, to, block, part.length, levels, code, count);
  if (block + 1 < part.blocks) return;
  // Several blocks have fewer bytes than 2 a value (table_coded_bound), so only one can be longer than its values.
  const uint64_t value = value_size(dtype), raw = 1 + part.n * value;
  const bool is_raw = end >= raw;
  b.phase([&](unsigned lane) {
    if (lane == 0) *job.out_size = is_raw ? raw : end;
    if (!is_raw || part.blocks > 1) return;
    const auto* const in = static_cast<const uint8_t*>(job.in);
    if (lane == 0) out[0] = 0;
    for (uint64_t i = lane; i + 1 < raw; i += Block::lanes) out[1 + i] = in[i];
  });
}

}  // namespace dr
