// value=lloyd on a GPU: encode. Each launch looks at the values once; the last block of a job that is done prepares the
// next (lloyd_codec.cpp). Launches that a job does not need leave at once.
#pragma once

#include "codecs/family/levels/table_values_encode_tile.hpp"
#include "codecs/value/lloyd/lloyd_fit_tile.hpp"
#include "codecs/value/lloyd/lloyd_tile.hpp"

namespace dr {

// A job's numbers in scratch, zero before the call.
struct lloyd_numbers {
  uint64_t bins[lloyd_bins];        // their words
  double lowest;                    // number of the first level
  uint32_t not_least, largest;      // ~ of the smallest magnitude's bits, the largest one's
  uint32_t seen[lloyd_levels_max];  // the distinct magnitudes, bits + 1, in any order
  uint32_t many;                    // they are more than levels
  uint32_t again;                   // one magnitude might have less error: all values are looked at
  uint32_t top;                     // the last bin with a value that was looked at
  uint32_t done[lloyd_launches];    // blocks
  lloyd_binning binning;
  lloyd_table table;
  uint32_t bounds[lloyd_levels_max];  // bits of the least magnitude above a level
  uint32_t counts[table_levels_max];  // of sampled levels
  table_code code;
};
struct lloyd_block {
  uint32_t largest;
  lloyd_sums::lanes sums;
};
// A job's scratch: the numbers, states of look-back and a ticket, blocks, levels.
struct lloyd_scratch {
  lloyd_numbers* numbers;
  uint64_t* state;
  lloyd_block* blocks;
  uint8_t* levels;

  static constexpr uint64_t begin = (sizeof(lloyd_numbers) + 63) / 64 * 64;
  DR_HD static uint64_t states(uint64_t n) { return (8 * (level_blocks(n) + 1) + 63) / 64 * 64; }
  DR_HD static uint64_t of_blocks(uint64_t n) { return (sizeof(lloyd_block) * level_blocks(n) + 63) / 64 * 64; }
  DR_HD static uint64_t size(uint64_t n) { return begin + states(n) + of_blocks(n) + level_block * level_blocks(n); }
  // n: the bound of values.
  DR_HD static lloyd_scratch of(std::byte* from, uint64_t n) {
    std::byte* const state = from + begin;
    std::byte* const blocks = state + states(n);
    return {reinterpret_cast<lloyd_numbers*>(from), reinterpret_cast<uint64_t*>(state),
            reinterpret_cast<lloyd_block*>(blocks), reinterpret_cast<uint8_t*>(blocks + of_blocks(n))};
  }
};

// What a block knows of its job.
struct lloyd_part : table_part {
  lloyd_scratch scratch;
  const void* in;
  uint32_t dtype, block;

  DR_HD static lloyd_part of(const lloyd_common& common, const tile_job& job, uint32_t block) {
    return {table_part::of(job, block), lloyd_scratch::of(common.of(job), uint64_t{job.count_max} * job.width), job.in,
            common.dtype, block};
  }
  DR_HD lloyd_numbers& numbers() const { return *scratch.numbers; }
  DR_HD lloyd_block& own() const { return scratch.blocks[block]; }
  DR_HD uint32_t magnitude(uint32_t i) const { return float_bits(dtype, in, begin + i) & f32_type::magnitude_mask; }
  // One in eight values is looked at first.
  DR_HD bool is_sampled() const { return n > lloyd_all; }
};

// From one block: the table and the bounds of levels.
template <class Block>
DR_HD void put_lloyd_levels(Block& b, const lloyd_levels& l, const uint32_t& dtype, lloyd_numbers& to) {
  b.phase([&](unsigned lane) {
    if (lane < lloyd_levels_max) to.bounds[lane] = lane + 1 < l.count ? l.least[lane + 1] : ~0u;
    if (lane != 0) return;
    with_value_type(dtype, [&](auto type) { lloyd_put_table<decltype(type)>(l, to.table); });
    to.lowest = l.numbers[0];
  });
}

template <class Args>
struct lloyd_range {
  static constexpr const char* name = "lloyd_range";
  static constexpr unsigned lanes = lloyd_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    uint32_t seen[lloyd_levels_max];
    lloyd_levels levels;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const lloyd_part part = lloyd_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    lloyd_numbers& to = part.numbers();
    typename Block::template each<uint32_t> not_least, largest;
    b.phase([&](unsigned lane) {
      not_least[lane] = largest[lane] = 0;
      for (uint32_t i = lane; i < part.length; i += lanes) {
        const uint32_t m = part.magnitude(i);
        if (~m > not_least[lane]) not_least[lane] = ~m;
        if (m > largest[lane]) largest[lane] = m;
      }
    });
    const uint32_t own_not_least = b.max(not_least), own_largest = b.max(largest);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      atomic_max(&to.not_least, own_not_least);
      atomic_max(&to.largest, own_largest);
      part.own().largest = own_largest;
    });
    add_seen(b, s, part, ~own_not_least, a.common.requested);
    if (!last_of(b, &to.done[lloyd_ranges], part.blocks)) return;
    if (to.many) {
      b.phase([&](unsigned lane) {
        if (lane == 0) to.binning = lloyd_binning::of(~to.not_least, to.largest, part.n);
      });
      return;
    }
    // One level for each magnitude.
    b.phase([&](unsigned lane) {
      if (lane == 0) s.levels.rounding = 0;
      if (lane >= lloyd_levels_max) return;
      uint32_t before = 0, all = 0;
      for (const uint32_t other : to.seen) {
        before += other != 0 && other < to.seen[lane];
        all += other != 0;
      }
      if (lane == 0) s.levels.count = all;
      if (to.seen[lane] == 0) return;
      s.levels.least[before] = to.seen[lane] - 1;
      s.levels.numbers[before] = double{f32_type::to_f32(to.seen[lane] - 1)};
      s.levels.weights[before] = 1;
    });
    put_lloyd_levels(b, s.levels, part.dtype, to);
  }

 private:
  // The block's magnitudes, in ascending order, to the job's, until they are more than levels.
  template <class Block>
  DR_HD static void add_seen(Block& b, shared& s, const lloyd_part& part, const uint32_t& least,
                             const uint32_t& requested) {
    lloyd_numbers& to = part.numbers();
    if (b.template once<uint32_t>([&] { return atomic_or(&to.many, 0u); })) return;
    uint32_t found = 0, next = least;
    for (; next != ~0u && found < requested; ++found) {
      typename Block::template each<uint32_t> above;
      b.phase([&](unsigned lane) {
        if (lane == 0) s.seen[found] = next;
        above[lane] = ~0u;
        for (uint32_t i = lane; i < part.length; i += lanes) {
          const uint32_t m = part.magnitude(i);
          if (m > next && m < above[lane]) above[lane] = m;
        }
      });
      next = b.min(above);
    }
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      bool room = next == ~0u;
      for (uint32_t k = 0; k < found && room; ++k) {
        room = false;
        for (uint32_t i = 0; i < requested && !room; ++i) {
          const uint32_t was = atomic_cas(&to.seen[i], 0u, s.seen[k] + 1);
          room = was == 0 || was == s.seen[k] + 1;
        }
      }
      if (!room) atomic_or(&to.many, 1u);
    });
  }
};

// Of many values one in eight, to bins.
template <class Args>
struct lloyd_sample {
  static constexpr const char* name = "lloyd_sample";
  static constexpr unsigned lanes = lloyd_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    uint64_t bins[lloyd_bins];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const lloyd_part part = lloyd_part::of(a.common, job, b.index() - job.first_tile);
    lloyd_numbers& to = part.numbers();
    if (part.length == 0 || !part.is_sampled() || !to.many) return;
    constexpr auto group = static_cast<uint32_t>(lloyd_group), apart = static_cast<uint32_t>(lloyd_apart);
    add_to_bins(b, s.bins, part, level_block / apart * group,
                [&](uint32_t k) { return k / group * apart + k % group; });
    if (!last_of(b, &to.done[lloyd_samples], part.blocks)) return;
    typename Block::template each<uint32_t> end;
    b.phase([&](unsigned lane) {
      end[lane] = 0;
      for (uint32_t bin = lane; bin < lloyd_bins; bin += lanes)
        if (to.bins[bin]) end[lane] = bin + 1;
    });
    const uint32_t all = b.max(end);
    b.phase([&](unsigned lane) {
      if (lane == 0) to.top = all - 1;  // (there is one: the first value is looked at)
    });
  }

  // Values at(k), k < some, that the block has, to the job's bins.
  template <class Block, class At>
  DR_HD static void add_to_bins(Block& b, uint64_t* bins, const lloyd_part& part, const uint32_t& some, At&& at) {
    lloyd_numbers& to = part.numbers();
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < lloyd_bins; i += lanes) bins[i] = 0;
    });
    b.phase([&](unsigned lane) {
      for (uint32_t k = lane; k < some; k += lanes) {
        const uint32_t i = at(k);
        if (i >= part.length) continue;
        const uint32_t m = part.magnitude(i);
        atomic_add(&bins[to.binning.bin_of(m) % lloyd_bins], to.binning.word_of(m));
      }
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < lloyd_bins; i += lanes)
        if (bins[i]) atomic_add(&to.bins[i], bins[i]);
    });
  }
};

// The rest of the values that count, and from all of them levels.
template <class Args>
struct lloyd_find {
  static constexpr const char* name = "lloyd_find";
  static constexpr unsigned lanes = lloyd_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    union {
      uint64_t bins[lloyd_bins];
      lloyd_fit_shared fit;  // when all blocks are done
    };
    lloyd_levels levels;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const lloyd_part part = lloyd_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    lloyd_numbers& to = part.numbers();
    const bool is_second = a.common.launch == lloyd_finds_again;
    if (!to.many || (is_second && !to.again)) return;
    const bool all = is_second || !part.is_sampled();
    if (all)
      lloyd_sample<Args>::add_to_bins(b, s.bins, part, level_block, [](uint32_t k) { return k; });
    else
      add_above(b, part);
    if (!last_of(b, &to.done[a.common.launch], part.blocks)) return;
    const uint64_t* const words = to.bins;
    const uint32_t top = all ? lloyd_bins : to.top;
    const double weight = all ? 1 : double{lloyd_apart} / lloyd_group;
    take_lloyd_points(b, s.fit.points, words, to.binning, top, weight);
    lloyd_block_fit<Block> fit(b, s.fit);
    const double rounding = lloyd_find_cells(fit, a.common.requested, a.common.price);
    b.phase([&](unsigned lane) {
      const lloyd_points& p = s.fit.points;
      if (lane < p.levels) p.tell(lane, s.levels);
      if (lane != 0) return;
      s.levels.count = p.levels;
      s.levels.rounding = rounding;
    });
    put_lloyd_levels(b, s.levels, part.dtype, to);
  }

 private:
  // Values above the last bin that has one so far.
  template <class Block>
  DR_HD static void add_above(Block& b, const lloyd_part& part) {
    lloyd_numbers& to = part.numbers();
    if (to.binning.bin_of(part.own().largest) <= to.top) return;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < part.length; i += lanes) {
        const uint32_t m = part.magnitude(i), bin = to.binning.bin_of(m);
        if (bin > to.top) atomic_add(&to.bins[bin % lloyd_bins], to.binning.word_of(m));
      }
    });
  }
};

template <class Args>
struct lloyd_quantise {
  static constexpr const char* name = "lloyd_quantise";
  static constexpr unsigned lanes = lloyd_lanes, grid_phases = 1;
  static constexpr uint32_t warp = 32, sums = 3, row = lloyd_sums::lane_count, numbers = sums * row;
  static constexpr uint32_t together = 16;  // blocks whose sums are added up at once
  using args = Args;
  struct shared {
    table_quantise_shared quantise;
    union {
      float part[numbers * together];  // sums of blocks
      table_choice_shared choice;
    };
    double sum[sums];  // of errors, magnitudes, squares
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const lloyd_part part = lloyd_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    lloyd_numbers& to = part.numbers();
    const bool is_second = a.common.launch == lloyd_quantises_again;
    if (is_second && !to.again) return;
    auto* const out = static_cast<uint8_t*>(job.out);
    const uint32_t count = to.table.count, head = 1 + count * to.table.number_size;
    const auto padded = static_cast<uint32_t>(bit_ceil(count < 2 ? 2 : count));
    const uint32_t* const bounds = to.bounds;
    uint32_t* const counts = to.counts;
    uint8_t *const levels = part.scratch.levels + part.begin, *const signs = out + head;
    typename Block::template each<uint32_t> zeros;
    quantise_table_block(b, s.quantise, part.dtype, part.in, part, bounds, padded, levels, signs, counts, zeros);
    // Values that are not looked at may be others than those that are.
    const bool is_judged = !is_second && to.many && part.is_sampled();
    if (is_judged) add_errors(b, s, part);
    if (!last_of(b, &to.done[a.common.launch], part.blocks)) return;
    if (is_judged && !is_good(b, s, part)) {
      b.phase([&](unsigned lane) {
        for (uint32_t i = lane; i < lloyd_bins; i += lanes) to.bins[i] = 0;
        if (lane < table_levels_max) to.counts[lane] = 0;
        if (lane == 0) to.again = 1;
      });
      return;
    }
    if (count >= 2)  // else the code is that of no words
      choose_table_code(b, s.choice, counts, count, part.n, to.code);
    b.phase([&](unsigned lane) {
      if (lane + 1 < head) out[1 + lane] = to.table.byte(lane);
      if (lane == 0)
        out[0] = static_cast<uint8_t>(1 | (to.code.huffman ? lloyd_huffman_bit : 0) | (count - 1) << lloyd_count_shift |
                                      (to.table.own_type ? lloyd_own_type_bit : 0));
    });
  }

 private:
  // The block's errors, each lane of lloyd_sums by a lane of its own, each of the three sums by a warp.
  template <class Block>
  DR_HD static void add_errors(Block& b, shared& s, const lloyd_part& part) {
    b.phase([&](unsigned lane) {
      const uint32_t which = lane / warp, first = lane % warp;
      if (which >= sums || first >= row) return;
      const lloyd_numbers& known = part.numbers();
      const lloyd_sums of(known.largest, known.lowest);
      const auto* const codes = reinterpret_cast<const uint8_t*>(s.quantise.code);
      float sum = 0;
#pragma unroll 8
      for (uint32_t i = first; i < part.length; i += row) {
        const float v = f32_type::to_f32(part.magnitude(i)) * of.scale;
        if (which == 0) {  // signs are alike, and differences of both signs have one square
          const float e = v - f32_type::to_f32(known.table.of[(codes[i] & 0x7f) % lloyd_levels_max]) * of.scale;
          sum += e * e;
        } else {
          const float y = v - of.origin;
          sum += which == 1 ? y : y * y;
        }
      }
      lloyd_sums::lanes& own = part.own().sums;
      (which == 0 ? own.error : which == 1 ? own.sum : own.squares)[first] = sum;
    });
  }

  // From one block, when all have added: the verdict, from sums in the order of blocks.
  template <class Block>
  DR_HD static bool is_good(Block& b, shared& s, const lloyd_part& part) {
    for (uint32_t first = 0; first < part.blocks; first += together) {
      const uint32_t rest = part.blocks - first, here = rest < together ? rest : together;
      b.phase([&](unsigned lane) {
        for (uint32_t i = lane; i < here * numbers; i += lanes) {
          const lloyd_sums::lanes& own = part.scratch.blocks[first + i / numbers].sums;
          const uint32_t which = i % numbers / row;
          s.part[i] = (which == 0 ? own.error : which == 1 ? own.sum : own.squares)[i % row];
        }
      });
      b.phase([&](unsigned lane) {
        const uint32_t which = lane / warp;
        if (lane % warp != 0 || which >= sums) return;
        double sum = first == 0 ? 0 : s.sum[which];
        for (uint32_t i = 0; i < here; ++i)
          for (uint32_t k = 0; k < row; ++k) sum += double{s.part[i * numbers + which * row + k]};
        s.sum[which] = sum;
      });
    }
    return b.template once<uint32_t>([&] {
      const lloyd_numbers& known = part.numbers();
      lloyd_sums all(known.largest, known.lowest);
      all.error = s.sum[0];
      all.sum = s.sum[1];
      all.squares = s.sum[2];
      return all.surely_better_than_one(part.n);
    }) != 0;
  }
};

template <class Args>
struct lloyd_code {
  static constexpr const char* name = "lloyd_code";
  static constexpr unsigned lanes = table_lanes, grid_phases = 1;
  using args = Args;
  using shared = table_encode_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    uint64_t* const state = lloyd_part::of(a.common, job, 0).scratch.state;
    const uint32_t block = take_table_block(b, job, state);
    const lloyd_part part = lloyd_part::of(a.common, job, block);
    if (part.length == 0) return put_no_values(b, job, state, block);
    const lloyd_numbers& known = part.numbers();
    const uint8_t* const levels = part.scratch.levels;
    const uint32_t count = known.table.count;
    put_table_values(b, s, job, part.dtype, part, block, state, levels, known.code, count,
                     1 + count * known.table.number_size);
  }
};

}  // namespace dr
