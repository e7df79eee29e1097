// value=uniform_quant on a GPU: encode. Each launch looks at all values once; the last block of a job that is done says
// what the next launch does (uniform_quant_search_kernel.hpp). Launches that a job does not need leave at once.
#pragma once

#include "codecs/family/levels/table_encode_tile.hpp"
#include "codecs/value/uniform_quant/uniform_quant_tile.hpp"
#include "primitive/sum_tree_tile.hpp"

namespace dr {

// Launches of encode: range, survey, attempts with and without an error each, verdict, code.
inline constexpr uint32_t uniform_quant_tries = uniform_attempts_max + 1;
inline constexpr uint32_t uniform_quant_rounds = 2 + 2 * uniform_quant_tries + 2;

struct uniform_quant_block {
  double first, second;   // sums of g and g²
  uint32_t units;         // sum of levels
  uint32_t size, is_raw;  // of its body
};

// A job's numbers in scratch, zero before the call.
struct uniform_quant_numbers {
  uint32_t not_least, largest;  // ~ of the smallest magnitude's bits, the largest one's
  uint32_t done[uniform_quant_rounds];
  uniform_survey survey;
  double magnitudes;  // Σ |v|
  uniform_search search;
  uniform_attempt attempt;
  bool unknown_error;  // of the attempt
  float least, step;   // with which values are coded; base: attempt.base
  float one;           // the best single magnitude
  uint64_t bodies;     // bytes of all of an attempt
};
// A job's scratch: the numbers, states of look-back and a ticket, blocks, two sums a tile of the sum tree.
struct uniform_quant_scratch {
  uniform_quant_numbers* numbers;
  uint64_t* state;
  uniform_quant_block* block;
  double* sums;  // of one kind, then of the other
  uint64_t tiles;

  DR_HD double* sums_of(uint32_t which) const { return sums + which * tiles; }
  static constexpr uint64_t begin = (sizeof(uniform_quant_numbers) + 63) / 64 * 64;
  DR_HD static uint64_t states(uint64_t n) { return 8 * (level_blocks(n) + 1); }
  DR_HD static uint64_t blocks(uint64_t n) { return sizeof(uniform_quant_block) * level_blocks(n); }
  DR_HD static uint64_t tree(uint64_t n) { return 8 * ceil_div(n, sum_tile); }
  DR_HD static uint64_t size(uint64_t n) { return begin + states(n) + blocks(n) + 2 * tree(n); }
  // n: the bound of values.
  DR_HD static uniform_quant_scratch of(std::byte* from, uint64_t n) {
    std::byte* const state = from + begin;
    std::byte* const block = state + states(n);
    std::byte* const sums = block + blocks(n);
    return {reinterpret_cast<uniform_quant_numbers*>(from), reinterpret_cast<uint64_t*>(state),
            reinterpret_cast<uniform_quant_block*>(block), reinterpret_cast<double*>(sums), ceil_div(n, sum_tile)};
  }
};

// What a block knows of its job.
struct uniform_quant_part {
  uniform_quant_scratch scratch;
  const void* in;
  uint64_t n, begin;
  uint32_t dtype, block, length, blocks;

  DR_HD static uniform_quant_part of(const uniform_quant_common& common, const tile_job& job, uint32_t block) {
    const uint64_t n = live_count(job) * job.width, begin = uint64_t{block} * level_block;
    const uint64_t rest = n > begin ? n - begin : 0;
    return {uniform_quant_scratch::of(common.of(job), uint64_t{job.count_max} * job.width),
            job.in,
            n,
            begin,
            common.dtype,
            block,
            static_cast<uint32_t>(rest < level_block ? rest : level_block),
            static_cast<uint32_t>(level_blocks(n))};
  }
  DR_HD uniform_quant_numbers& numbers() const { return *scratch.numbers; }
  DR_HD uniform_quant_block& own() const { return scratch.block[block]; }
  // Value i of the block.
  DR_HD float value(uint32_t i) const { return value_at(dtype, in, begin + i); }
  DR_HD float magnitude(uint32_t i) const {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value(i)) & f32_type::magnitude_mask);
  }
};

// x of SPEC.md.
struct uniform_quant_step {
  float least, step, inverse;

  DR_HD static uniform_quant_step of(float least, float step) { return {least, step, step > 0 ? 1 / step : 0}; }
  DR_HD float position(float magnitude) const {
    const float x = (magnitude - least) * inverse;
    return x < 65535.0f ? x : 65535.0f;
  }
};

struct uniform_quant_sums {
  double part[uniform_quant_lanes], total[2];
};

// Sums of the block's tiles of the sum tree to scratch: term(i) of value i.
template <class Block, class Term>
DR_HD void add_tiles(Block& b, uniform_quant_sums& s, const uniform_quant_part& part, const uint32_t& which,
                     const Term& term) {
  constexpr uint32_t group = tree_lanes(sum_tile), beside = Block::lanes / group;
  for (uint32_t first = 0; first < level_block / sum_tile; first += beside) {
    tree_sums(b, s.part, group, [&](uint32_t t, uint32_t i) {
      const uint32_t at = (first + t) * static_cast<uint32_t>(sum_tile) + i;
      return at < part.length ? term(at) : 0.0;
    });
    b.phase([&](unsigned lane) {
      if (lane < beside && (first + lane) * sum_tile < part.length)
        part.scratch.sums_of(which)[part.begin / sum_tile + first + lane] = s.part[lane * group];
    });
  }
}
// From one block, when all have added: both sums of all tiles, in order, to s.total.
template <class Block>
DR_HD void add_up_tiles(Block& b, uniform_quant_sums& s, const uniform_quant_part& part) {
  constexpr uint32_t some = Block::lanes / 2;
  const uint64_t tiles = ceil_div(part.n, sum_tile);
  for (uint64_t first = 0; first < tiles; first += some) {
    b.phase([&](unsigned lane) {
      const uint64_t i = first + lane % some;
      if (i < tiles) s.part[lane] = part.scratch.sums_of(lane / some)[i];
    });
    b.phase([&](unsigned lane) {
      if (lane >= 2) return;
      double total = first == 0 ? 0 : s.total[lane];
      for (uint32_t i = 0; i < some && first + i < tiles; ++i) total += s.part[lane * some + i];
      s.total[lane] = total;
    });
  }
}

// Lanes i % 32 of the sums of a block, in f32, then pairwise in f64: of terms in shared memory.
struct uniform_quant_lane_sums {
  static constexpr uint32_t rows = 32;
  double sum[2][rows];
};
template <class Block, class Term>
DR_HD void add_rows_of(Block& b, uniform_quant_lane_sums& s, const uint32_t& length, uniform_quant_block& to,
                       const Term& term) {
  constexpr uint32_t rows = uniform_quant_lane_sums::rows;
  b.phase([&](unsigned lane) {
    if (lane >= 2 * rows) return;
    float sum = 0;
    for (uint32_t i = lane % rows; i < length; i += rows) sum += term(lane / rows, i);
    s.sum[lane / rows][lane % rows] = sum;
  });
  b.phase([&](unsigned lane) {
    if (lane >= 2) return;
    for (uint32_t h = rows / 2; h > 0; h /= 2)
      for (uint32_t i = 0; i < h; ++i) s.sum[lane][i] += s.sum[lane][i + h];
    (lane ? to.second : to.first) = s.sum[lane][0];
  });
}

template <class Args>
struct uniform_quant_range {
  static constexpr const char* name = "uniform_quant_range";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uniform_quant_part part = uniform_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    uniform_quant_numbers& to = part.numbers();
    typename Block::template each<uint32_t> not_least, largest;
    b.phase([&](unsigned lane) {
      not_least[lane] = largest[lane] = 0;
      for (uint32_t i = lane; i < part.length; i += lanes) {
        const auto m = std::bit_cast<uint32_t>(part.magnitude(i));
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
  }
};

template <class Args>
struct uniform_quant_survey {
  static constexpr const char* name = "uniform_quant_survey";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    uniform_quant_sums sums;
    uniform_quant_lane_sums rows;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uniform_quant_part part = uniform_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    uniform_quant_numbers& to = part.numbers();
    const uint32_t exponent = to.largest >> 23;
    const bool usual = exponent >= uniform_exponent_min && exponent <= uniform_exponent_max;
    const float scale = usual ? uniform_scale_of(exponent) : 0;
    add_rows_of(b, s.rows, part.length, part.own(), [&](uint32_t which, uint32_t i) {
      const float v = part.value(i) * scale;
      return which == 0 ? v * v : 0.0f;
    });
    const uint32_t which = 0;
    add_tiles(b, s.sums, part, which, [&](uint32_t i) { return double{part.magnitude(i)}; });
    if (!last_of(b, &to.done[a.common.round], part.blocks)) return;
    add_up_tiles(b, s.sums, part);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      double squares = 0;
      for (uint32_t i = 0; i < part.blocks; ++i) squares += part.scratch.block[i].first;
      to.survey = {std::bit_cast<float>(~to.not_least), std::bit_cast<float>(to.largest),
                   usual ? squares / (double{scale} * double{scale}) : 0, usual};
      to.magnitudes = s.sums.total[0];
      to.search = uniform_search::of(to.survey, part.n, a.common.dtype == DR_F32, a.common.error, a.common.bits);
      if (to.search.then == uniform_search::sends) send_one(to, to.survey.least, part.n);
    });
  }

  // One magnitude for all: levels are 0, and every body is empty.
  DR_HD static void send_one(uniform_quant_numbers& to, float magnitude, uint64_t n) {
    to.least = magnitude;
    to.step = 0;
    to.attempt = uniform_attempt::of(magnitude, 0, -0.5 * static_cast<double>(n), 0, n, 0, n);
    to.bodies = 0;
  }
};

// Levels of a block of values, and how they are coded.
struct uniform_quant_levels {
  alignas(16) uint16_t level[level_block];
  uint16_t unit[level_block / 2];

  // Whether a level is beyond the largest; zeros: words to be cleared beside.
  template <class Block>
  DR_HD bool quantise(Block& b, const uniform_quant_part& part, const uniform_quant_step& by, uint32_t* zeros,
                      const uint32_t& zeros_end) {
    typename Block::template each<uint32_t> beyond;
    b.phase([&](unsigned lane) {
      beyond[lane] = 0;
      for (uint32_t i = lane; i < level_block; i += Block::lanes) {
        const uint32_t own = i < part.length ? static_cast<uint32_t>(by.position(part.magnitude(i))) : 0;
        beyond[lane] |= own == level_max;
        level[i] = static_cast<uint16_t>(own);
      }
      for (uint32_t i = lane; i < zeros_end; i += Block::lanes) zeros[i] = 0;
    });
    return b.max(beyond) != 0;
  }
  DR_HD uint32_t operator()(unsigned lane, unsigned j) const { return level[lane * lane_levels_max + j]; }
};

// An attempt: the sums and sizes of all blocks, and of 16-bit values, in another launch, the error of the decoded ones.
template <class Args>
struct uniform_quant_try {
  static constexpr const char* name = "uniform_quant_try";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    uniform_quant_levels levels;
    uniform_quant_lane_sums rows;
    double first[lanes], second[lanes];
    uint64_t units[lanes], sizes[lanes];
    uint64_t counted[lanes];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uniform_quant_part part = uniform_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    uniform_quant_numbers& to = part.numbers();
    // (The last block changes it, when all others are done.)
    if (b.template once<uint32_t>([&] { return to.search.then; }) != uniform_search::tries) return;
    const auto by = uniform_quant_step::of(to.survey.least, static_cast<float>(to.search.step));
    const bool beyond = s.levels.quantise(b, part, by, nullptr, 0);
    add_rows_of(b, s.rows, part.length, part.own(), [&](uint32_t which, uint32_t i) {
      const float g = by.position(part.magnitude(i)) - static_cast<float>(s.levels.level[i]) - 0.5f;
      return which == 0 ? g : g * g;
    });
    typename Block::template each<uint64_t> costs;
    const level_body body = choose_level_body(b, s.levels.unit, costs, part.length, s.levels);
    typename Block::template each<uint32_t> units;
    b.phase([&](unsigned lane) {
      units[lane] = 0;
      for (unsigned j = 0; j < lane_levels_max; ++j) units[lane] += s.levels(lane, j);
    });
    const uint32_t own_units = b.sum(units);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const uint32_t raw = part.length * value_size(a.common.dtype);
      const bool is_raw = beyond || body.size >= raw;
      uniform_quant_block& own = part.own();
      own.units = own_units;
      own.size = is_raw ? raw : body.size;
      own.is_raw = is_raw;
    });
    if (!last_of(b, &to.done[a.common.round], part.blocks)) return;
    add_up(b, s, part, by.step);
  }

  // What follows from an attempt whose error is known.
  DR_HD static void judge(uniform_quant_numbers& to, uint64_t n) {
    to.search.judge(to.attempt);
    if (to.search.then != uniform_search::judges) return;
    if (uniform_surely_better(to.survey, to.attempt, n)) to.search.then = uniform_search::sends;
  }

 private:
  // The attempt from all blocks, doubles in their order; and what follows.
  template <class Block>
  DR_HD static void add_up(Block& b, shared& s, const uniform_quant_part& part, const float& step) {
    uniform_quant_numbers& to = part.numbers();
    struct totals {
      double first, second;
      uint64_t units, sizes, counted;
    };
    totals all{0, 0, 0, 0, 0};
    for (uint32_t from = 0; from < part.blocks; from += lanes) {
      const uint32_t some = part.blocks - from < lanes ? part.blocks - from : lanes;
      b.phase([&](unsigned lane) {
        if (lane >= some) return;
        const uniform_quant_block& own = part.scratch.block[from + lane];
        const uint64_t at = uint64_t{from + lane} * level_block, rest = part.n - at;
        s.first[lane] = own.first;
        s.second[lane] = own.second;
        s.units[lane] = own.units;
        s.sizes[lane] = own.size;
        s.counted[lane] = own.is_raw ? 0 : rest < level_block ? rest : level_block;
      });
      all = b.template once<totals>([&] {
        totals sum = all;
        for (uint32_t i = 0; i < some; ++i) {
          sum.sizes += s.sizes[i];
          if (s.counted[i] == 0) continue;
          sum.first += s.first[i];
          sum.second += s.second[i];
          sum.units += s.units[i];
          sum.counted += s.counted[i];
        }
        return sum;
      });
    }
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      to.attempt = uniform_attempt::of(to.survey.least, step, all.first, all.second, all.counted, all.units, part.n);
      to.least = to.survey.least;
      to.step = step;
      to.bodies = all.sizes;
      to.unknown_error = part.dtype != DR_F32 && to.attempt.levels;
      if (!to.unknown_error) judge(to, part.n);
    });
  }
};

// The squared error of value i, decoded.
DR_HD inline double uniform_quant_error(const uniform_quant_part& part, const uniform_quant_step& by, float base,
                                        uint32_t i) {
  const float v = part.magnitude(i);
  const float wide = uniform_quant_value(base, by.step, static_cast<uint32_t>(by.position(v)));
  const float got = with_value_type(part.dtype, [&](auto type) {
    using T = decltype(type);
    return T::to_f32(rounded_finite<T>(wide));
  });
  const double e = double{got} - double{v};
  return e * e;
}

template <class Args>
struct uniform_quant_error_of_try {
  static constexpr const char* name = "uniform_quant_error";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  using args = Args;
  using shared = uniform_quant_sums;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uniform_quant_part part = uniform_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    uniform_quant_numbers& to = part.numbers();
    if (!b.template once<uint32_t>([&] { return to.unknown_error; })) return;
    const auto by = uniform_quant_step::of(to.least, to.step);
    const bool is_raw = part.own().is_raw;
    const uint32_t which = 0;
    add_tiles(b, s, part, which,
              [&](uint32_t i) { return is_raw ? 0.0 : uniform_quant_error(part, by, to.attempt.base, i); });
    if (!last_of(b, &to.done[a.common.round], part.blocks)) return;
    add_up_tiles(b, s, part);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      to.attempt.error = std::sqrt(s.total[0]);
      to.unknown_error = false;
      uniform_quant_try<Args>::judge(to, part.n);
    });
  }
};

// Whether the best single magnitude has less error.
template <class Args>
struct uniform_quant_verdict {
  static constexpr const char* name = "uniform_quant_verdict";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  using args = Args;
  using shared = uniform_quant_sums;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uniform_quant_part part = uniform_quant_part::of(a.common, job, b.index() - job.first_tile);
    if (part.length == 0) return;
    uniform_quant_numbers& to = part.numbers();
    if (b.template once<uint32_t>([&] { return to.search.then; }) != uniform_search::judges) return;
    const auto by = uniform_quant_step::of(to.least, to.step);
    const bool is_raw = part.own().is_raw;
    const float one = with_value_type(a.common.dtype, [&](auto type) {
      using T = decltype(type);
      return T::to_f32(T::from_f64(saturate<T>(to.magnitudes / static_cast<double>(part.n))));
    });
    const uint32_t own = 0, other = 1;
    add_tiles(b, s, part, own,
              [&](uint32_t i) { return is_raw ? 0.0 : uniform_quant_error(part, by, to.attempt.base, i); });
    add_tiles(b, s, part, other, [&](uint32_t i) {
      const double e = double{part.magnitude(i)} - double{one};
      return e * e;
    });
    if (!last_of(b, &to.done[a.common.round], part.blocks)) return;
    add_up_tiles(b, s, part);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const double exact = std::sqrt(s.total[0]);
      if (!(exact * exact <= s.total[1])) uniform_quant_survey<Args>::send_one(to, one, part.n);
      to.search.then = uniform_search::sends;
    });
  }
};

template <class Args>
struct uniform_quant_code {
  static constexpr const char* name = "uniform_quant_code";
  static constexpr unsigned lanes = uniform_quant_lanes, grid_phases = 1;
  static constexpr uint32_t words = static_cast<uint32_t>(level_body_max) / 4;
  using args = Args;
  struct shared {
    alignas(16) uint32_t body[words + 2];
    uniform_quant_levels levels;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n_max = uint64_t{job.count_max} * job.width;
    const auto tiles = static_cast<uint32_t>(level_blocks(n_max));
    const uniform_quant_scratch scratch = uniform_quant_scratch::of(a.common.of(job), n_max);
    const uint32_t block = tiles <= 1 ? 0 : take_tile(b, reinterpret_cast<uint32_t*>(scratch.state + tiles));
    const uniform_quant_part part = uniform_quant_part::of(a.common, job, block);
    if (part.length == 0) return put_no_values(b, job, scratch.state, block);
    const uniform_quant_numbers& known = *scratch.numbers;
    auto* const out = static_cast<uint8_t*>(job.out);
    const unsigned unit = value_size(a.common.dtype);
    const uint64_t table = uniform_quant_head + ceil_div(part.n, 8), raw_size = 1 + part.n * unit;
    const bool is_raw = known.search.then != uniform_search::sends ||
                        (part.blocks > 1 && table + 4 * uint64_t{part.blocks} + known.bodies > raw_size);
    const level_target to{out, table, job.key, part.n, scratch.state};
    coded made{};
    if (!is_raw) made = code(b, s, part, known, to, unit);
    const uint64_t end = made.entry.at + made.size;
    // A lone block knows its size only now.
    const bool raw_after_all = is_raw || (part.blocks == 1 && end > raw_size);
    b.phase([&](unsigned lane) {
      const auto* const in = static_cast<const uint8_t*>(part.in) + part.begin * unit;
      const uint32_t bytes = part.length * unit;
      if (block + 1 == part.blocks && lane == 0) *job.out_size = raw_after_all ? raw_size : end;
      if (raw_after_all) {
        for (uint32_t i = lane; i < bytes; i += lanes) out[1 + part.begin * unit + i] = in[i];
        if (block == 0 && lane == 0) out[0] = 0;
        return;
      }
      if (block == 0 && lane == 0) head(known, out);
      signs(part, out + uniform_quant_head, lane);
      made.entry.put(to, block, lane);
      if (end > to.bound) return;
      if (!made.is_raw) return put_bytes(s.body, made.size, out + made.entry.at, lane, lanes);
      for (uint32_t i = lane; i < bytes; i += lanes)
        out[made.entry.at + i] = static_cast<uint8_t>(i % unit == unit - 1 ? in[i] & 0x7f : in[i]);
    });
  }

 private:
  struct coded {
    level_entry entry;
    uint32_t size;
    bool is_raw;
  };

  DR_HD static void head(const uniform_quant_numbers& known, uint8_t* out) {
    const uint32_t base = std::bit_cast<uint32_t>(known.attempt.base), step = std::bit_cast<uint32_t>(known.step);
    out[0] = 1;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      out[1 + i] = static_cast<uint8_t>(base >> (8 * i));
      out[5 + i] = static_cast<uint8_t>(step >> (8 * i));
    }
  }
  DR_HD static void signs(const uniform_quant_part& part, uint8_t* to, unsigned lane) {
    for (uint32_t i = lane; 8 * i < part.length; i += lanes) {
      uint32_t byte = 0;
      for (uint32_t k = 0; k < 8 && 8 * i + k < part.length; ++k)
        byte |= std::bit_cast<uint32_t>(part.value(8 * i + k)) >> 31 << k;
      to[part.begin / 8 + i] = static_cast<uint8_t>(byte);
    }
  }

  // The block's body in s.body, unless it is raw.
  template <class Block>
  DR_HD static coded code(Block& b, shared& s, const uniform_quant_part& part, const uniform_quant_numbers& known,
                          const level_target& to, const unsigned& unit) {
    const auto by = uniform_quant_step::of(known.least, known.step);
    const bool beyond = s.levels.quantise(b, part, by, s.body, words + 2);
    typename Block::template each<uint64_t> costs;
    const level_body body = choose_level_body(b, s.levels.unit, costs, part.length, s.levels);
    const uint32_t raw = part.length * unit;
    const bool is_raw = beyond || body.size >= raw;
    if (!is_raw) put_level_body(b, body, s.levels.unit, costs, s.levels, s.body, words);
    const uint32_t size = is_raw ? raw : body.size;
    return {level_entry::of(b, to, part.block, size, true, is_raw ? raw_block : body.code), size, is_raw};
  }
};

}  // namespace dr
