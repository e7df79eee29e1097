// value=log_quant on a GPU: encode. Each launch needs what the one before it knows of all values: the range, then the
// counts of levels; so they are three, and the last block of a job in each prepares the next.
#pragma once

#include "codecs/family/levels/table_values_encode_tile.hpp"
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
struct log_quant_part : table_part {
  log_quant_scratch scratch;

  DR_HD static log_quant_part of(const log_quant_common& common, const tile_job& job, uint32_t block) {
    return {table_part::of(job, block), log_quant_scratch::of(common.of(job), uint64_t{job.count_max} * job.width)};
  }
};

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
  using args = Args;
  struct shared {
    table_quantise_shared quantise;
    double part[lanes], total;
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
    quantise(b, s.quantise, a.common.dtype, job.in, part, levels, out + head);
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
  DR_HD static void quantise(Block& b, table_quantise_shared& s, const uint32_t& dtype, const void* const& in,
                             const log_quant_part& part, const uint32_t& levels, uint8_t* const& signs) {
    log_quant_numbers& to = *part.scratch.numbers;
    const uint32_t* const bounds = to.bounds;
    uint32_t* const counts = to.counts;
    uint8_t* const own = part.scratch.levels + part.begin;
    typename Block::template each<uint32_t> zeros;
    quantise_table_block(b, s, dtype, in, part, bounds, levels, own, signs, counts, zeros);
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
      return m < s.quantise.bound[0] ? double{f32_type::to_f32(m)} : 0.0;
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
    uint64_t* const state = log_quant_part::of(a.common, job, 0).scratch.state;
    const uint32_t block = take_table_block(b, job, state), count = 1u << a.common.bits, dtype = a.common.dtype;
    const log_quant_part part = log_quant_part::of(a.common, job, block);
    if (part.length == 0) return put_no_values(b, job, state, block);
    const log_quant_numbers& known = *part.scratch.numbers;
    const uint8_t* const levels = part.scratch.levels;
    const uint64_t head = log_head + 4 * (known.apart != 0);
    put_table_values(b, s, job, dtype, part, block, state, levels, known.code, count, head);
  }
};

}  // namespace dr
