// value=log_quant on a GPU: encode. Each launch needs what the one before it knows of all values: the range, then the
// counts of levels; so they are three, and the last block of a job in each prepares the next.
#pragma once

#include "codecs/family/levels/table_encode_tile.hpp"
#include "codecs/value/log_quant/log_quant_tile.hpp"
#include "primitive/sum_tree_tile.hpp"

namespace dr {

// A job's numbers in scratch, zero before the call.
struct log_quant_numbers {
  uint64_t at_zero;                   // values at level 0
  uint32_t not_least, largest;        // ~ of the smallest magnitude's bits, the largest one's
  uint32_t ranged, quantised;         // blocks that are done
  uint32_t low, apart;                // low's bits; some magnitude is below it
  uint32_t bounds[table_levels_max];  // bits of the least magnitude above a level
  uint32_t counts[table_levels_max];  // of sampled levels
  table_code code;
};
// A job's scratch: the numbers, states of look-back and a ticket, sums of tiles of the sum tree, levels.
struct log_quant_scratch {
  log_quant_numbers* numbers;
  uint64_t* state;
  double* sums;
  uint8_t* levels;

  static constexpr uint64_t begin = (sizeof(log_quant_numbers) + 63) / 64 * 64;
  DR_HD static uint64_t states(uint64_t n) { return (8 * (level_blocks(n) + 1) + 63) / 64 * 64; }
  DR_HD static uint64_t tree(uint64_t n) { return (8 * ceil_div(n, sum_tile) + 63) / 64 * 64; }
  DR_HD static uint64_t size(uint64_t n) { return begin + states(n) + tree(n) + log_quant_tile * level_blocks(n); }
  // n: the bound of values.
  DR_HD static log_quant_scratch of(std::byte* from, uint64_t n) {
    std::byte* const state = from + begin;
    std::byte* const sums = state + states(n);
    return {reinterpret_cast<log_quant_numbers*>(from), reinterpret_cast<uint64_t*>(state),
            reinterpret_cast<double*>(sums), reinterpret_cast<uint8_t*>(sums + tree(n))};
  }
};

// What a block knows of its job.
struct log_quant_part {
  log_quant_scratch scratch;
  uint64_t n, begin;
  uint32_t length, blocks;

  DR_HD static log_quant_part of(const log_quant_common& common, const tile_job& job, uint32_t tile) {
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{tile} * log_quant_tile;
    const uint64_t rest = n > begin ? n - begin : 0;
    return {log_quant_scratch::of(common.of(job), uint64_t{job.count_max} * job.width), n, begin,
            static_cast<uint32_t>(rest < log_quant_tile ? rest : log_quant_tile),
            static_cast<uint32_t>(level_blocks(n))};
  }
};

DR_HD inline uint32_t float_bits(uint32_t dtype, const void* values, uint64_t i) {
  return std::bit_cast<uint32_t>(value_at(dtype, values, i));
}

template <class Args>
struct log_quant_range {
  static constexpr const char* name = "log_quant_range";
  static constexpr unsigned lanes = log_quant_lanes, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const log_quant_part part = log_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    log_quant_numbers& to = *part.scratch.numbers;
    typename Block::template each<uint32_t> not_least, largest;
    b.phase([&](unsigned lane) {
      not_least[lane] = largest[lane] = 0;
      for (uint32_t i = lane; i < part.length; i += lanes) {
        const uint32_t m = float_bits(a.common.dtype, job.in, part.begin + i) & f32_type::magnitude_mask;
        if (~m > not_least[lane]) not_least[lane] = ~m;
        if (m > largest[lane]) largest[lane] = m;
      }
    });
    const uint32_t own_not_least = b.max(not_least), own_largest = b.max(largest);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      atomic_max(&to.not_least, own_not_least);
      atomic_max(&to.largest, own_largest);
    });
    if (!last_of(b, &to.ranged, part.blocks)) return;
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const auto least = std::bit_cast<float>(~to.not_least), high = std::bit_cast<float>(to.largest);
      const float low = log_quant_low(least, high, a.common.range);
      to.low = std::bit_cast<uint32_t>(low);
      to.apart = least < low;
      each_log_level(low, high, a.common.bits,
                     [&](unsigned i, float, float bound) { to.bounds[i] = std::bit_cast<uint32_t>(bound); });
    });
  }
};

template <class Args>
struct log_quant_levels {
  static constexpr const char* name = "log_quant_levels";
  static constexpr unsigned lanes = log_quant_lanes, grid_phases = 1;
  static constexpr unsigned own = log_quant_tile / lanes;  // values of a lane
  static_assert(own == sizeof(four_words));
  using args = Args;
  struct shared {
    alignas(16) four_words code[lanes];  // bytes: level, and the sign as the highest bit
    double part[lanes], total;
    uint32_t bound[table_levels_max], count[table_levels_max];
    table_choice_shared choice;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const log_quant_part part = log_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    log_quant_numbers& to = *part.scratch.numbers;
    const uint32_t levels = 1u << a.common.bits;
    const bool apart = to.apart;
    const uint64_t head = log_head + 4 * apart;
    auto* const out = static_cast<uint8_t*>(job.out);
    quantise(b, s, a.common, job, part, levels, out + head);
    if (apart) add_lowest(b, s, a.common, job, part);
    if (!last_of(b, &to.quantised, part.blocks)) return;
    choose_table_code(b, s.choice, to.counts, levels, part.n, to.code);
    const float lowest = apart ? mean_of_lowest(b, s, part) : 0;
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const uint32_t numbers[3] = {to.low, to.largest, std::bit_cast<uint32_t>(lowest)};
      out[0] = static_cast<uint8_t>(1 | (to.code.huffman ? log_huffman_bit : 0) | (apart ? log_lowest_bit : 0) |
                                    a.common.bits << log_bits_shift);
#pragma unroll
      for (unsigned i = 0; i < 3; ++i)
        for (unsigned k = 0; k < 4; ++k)
          if (i < 2 || apart) out[1 + 4 * i + k] = static_cast<uint8_t>(numbers[i] >> (8 * k));
    });
  }

 private:
  // Levels to scratch, signs to the payload, counts to the job's.
  template <class Block>
  DR_HD static void quantise(Block& b, shared& s, const log_quant_common& common, const tile_job& job,
                             const log_quant_part& part, const uint32_t& levels, uint8_t* const& signs) {
    log_quant_numbers& to = *part.scratch.numbers;
    const level_sample sample = level_sample::of(part.n);
    b.phase([&](unsigned lane) {
      if (lane >= table_levels_max) return;
      s.bound[lane] = to.bounds[lane];
      s.count[lane] = 0;
    });
    b.phase([&](unsigned lane) {
      auto* const codes = reinterpret_cast<uint8_t*>(s.code);
      for (uint32_t i = lane; i < log_quant_tile; i += lanes) {
        uint32_t level = 0, sign = 0;
        if (i < part.length) {
          const uint32_t v = float_bits(common.dtype, job.in, part.begin + i), m = v & f32_type::magnitude_mask;
          sign = v >> 31;
          for (uint32_t half = levels / 2; half > 0; half /= 2) level += m >= s.bound[level + half - 1] ? half : 0;
          if (!sample.is_part() || (part.begin + i) % level_sample::apart < level_sample::group)
            atomic_add(&s.count[level], 1u);
        }
        codes[i] = static_cast<uint8_t>(level | sign << 7);
      }
    });
    typename Block::template each<uint32_t> zeros;
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
      reinterpret_cast<four_words*>(part.scratch.levels + part.begin)[lane] = codes;
      for (unsigned k = 0; k < 2; ++k)
        if (lane * own + 8 * k < part.length)
          signs[part.begin / 8 + 2 * lane + k] = static_cast<uint8_t>(sign >> (8 * k));
      if (lane < table_levels_max && s.count[lane]) atomic_add(&to.counts[lane], s.count[lane]);
    });
    const uint32_t all = b.sum(zeros);
    b.phase([&](unsigned lane) {
      if (lane == 0 && all) atomic_add(&to.at_zero, uint64_t{all});
    });
  }

  // The magnitudes at level 0, in the order of the sum tree.
  template <class Block>
  DR_HD static void add_lowest(Block& b, shared& s, const log_quant_common& common, const tile_job& job,
                               const log_quant_part& part) {
    put_tile_sums(b, s.part, part.length, part.scratch.sums + part.begin / sum_tile, [&](uint32_t i) {
      const uint32_t m = float_bits(common.dtype, job.in, part.begin + i) & f32_type::magnitude_mask;
      return m < s.bound[0] ? double{f32_type::to_f32(m)} : 0.0;
    });
  }

  template <class Block>
  DR_HD static float mean_of_lowest(Block& b, shared& s, const log_quant_part& part) {
    add_tile_sums(b, s.part, s.total, part.scratch.sums, ceil_div(part.n, sum_tile));
    return b.template once<float>([&] {
      const uint64_t count = part.scratch.numbers->at_zero;
      return count ? static_cast<float>(s.total / static_cast<double>(count)) : 0.0f;
    });
  }
};

template <class Args>
struct log_quant_code {
  static constexpr const char* name = "log_quant_code";
  static constexpr unsigned lanes = table_lanes, grid_phases = 1;
  using args = Args;
  using shared = table_encode_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n_max = uint64_t{job.count_max} * job.width;
    const auto tiles = static_cast<uint32_t>(level_blocks(n_max));
    const log_quant_scratch scratch = log_quant_scratch::of(a.common.of(job), n_max);
    const uint32_t block = tiles <= 1 ? 0 : take_tile(b, reinterpret_cast<uint32_t*>(scratch.state + tiles));
    const log_quant_part part = log_quant_part::of(a.common, job, block);
    if (part.length == 0) {
      b.phase([&](unsigned lane) {
        if (block == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
      });
      return;
    }
    const log_quant_numbers& known = *scratch.numbers;
    const uint32_t length = part.length, count = 1u << a.common.bits;
    auto* const out = static_cast<uint8_t*>(job.out);
    const level_target to{out, log_head + 4 * (known.apart != 0) + ceil_div(part.n, 8), job.key, part.n, scratch.state};
    typename Block::template each<lane_levels> levels;
    b.phase([&](unsigned lane) {
      levels[lane].bytes = reinterpret_cast<const four_words*>(scratch.levels + part.begin)[lane];
      for (uint32_t i = lane; i < table_encode_shared::words + 2; i += lanes) s.body[i] = 0;
      if (lane < table_levels_max) s.word[lane] = known.code.words[lane];
    });
    const uint64_t end = put_table_block(b, s, to, block, length, levels, known.code, count);
    if (block + 1 < part.blocks) return;
    // Several blocks have at most 75 + 1.507 · n bytes (table_coded_bound), so only one can be longer than its values.
    const uint64_t value = value_size(a.common.dtype), raw = 1 + part.n * value;
    const bool is_raw = end >= raw;
    b.phase([&](unsigned lane) {
      if (lane == 0) *job.out_size = is_raw ? raw : end;
      if (!is_raw || part.blocks > 1) return;
      const auto* const in = static_cast<const uint8_t*>(job.in);
      if (lane == 0) out[0] = 0;
      for (uint64_t i = lane; i + 1 < raw; i += lanes) out[1 + i] = in[i];
    });
  }
};

}  // namespace dr
