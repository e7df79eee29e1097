// Which elements are kept, on a GPU: exact Top-r with one read of the gradient, thresholds, what is not zero, and what arrives sparse.
//
//   bracket   a sample brackets the r-th magnitude in [lo, hi]; tensors of up to 8192 elements are solved outright
//   filter    the read: candidates (key >= lo) are noted tile by tile, keys in [lo, hi] are listed and counted in 2048 bins
//   refine    the bin of rank r, and in it the exact threshold; and an order of tiles
//   compact   candidates in the order of tiles, cut at the threshold: support and values
//   fallback  where the sample misled (constant or adversarial data): radix over all elements, in one cooperative launch
//
// Proof that bytes never depend on the sample: refine accepts only if count(> hi) < r <= count(>= lo) and all candidates were noted; then the
// r-th largest key lies in [lo, hi] and is found exactly among them. Otherwise the radix finds the same key. If lo is 1 and fewer than r
// candidates were noted, they are all that is not zero, and all are kept.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "feedback/feedback_kernel.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/device_row.hpp"
#include "primitive/lookback.hpp"
#include "primitive/rng.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned select_lanes = 256;
inline constexpr uint32_t select_small = 8192;  // elements that one block solves
inline constexpr uint32_t select_tile = 8192;   // elements a block, in filter
inline constexpr uint32_t select_bins = 2048, select_sample_bins = 8192;
inline constexpr uint32_t sample_piece = 4, sample_tile = 4096;  // consecutive values; values a block
inline constexpr uint32_t order_tile = 1024;                     // tiles that a block of refine puts in order
inline constexpr uint32_t collect_tile = 4096,
                          collect_rounds = 4;    // keys a round, in refine; rounds, should all of `room` be listed
inline constexpr uint32_t select_slice = 4096;   // candidates a block, in compact
inline constexpr uint32_t fallback_tile = 8192;  // elements that a block of the fall-back has at least

enum select_kind : uint8_t { select_nonzero = 0, select_largest_kind = 1, select_from_kind = 2 };
enum select_flag : uint8_t { select_needs_finite = 1, select_keys_in_kept = 2 };

// One dense tensor, as kernels see it. Scratch is told by offsets, in units of 64 bytes, from where the launch says.
struct select_unit {
  const void* values;
  float* residual;  // or NULL
  uint32_t* support;
  void* kept;
  device_row* row;
  uint32_t d, target, count_max, width;
  uint32_t capacity;    // of candidates
  uint32_t low;         // of a threshold: keys from here on
  uint32_t first_tile;  // of the launch
  uint32_t zeroed, plain;
  uint16_t sample_blocks;
  uint8_t kind, flags;
};
static_assert(sizeof(select_unit) == 80);

struct select_common {
  std::byte *zeroed, *plain;
  float beta, gamma;
  uint32_t dtype, infinity;  // the least key that is not finite
};

template <size_t N>
struct select_args {
  select_common common;
  uint32_t jobs, tiles;
  select_unit job[N];
};

// What blocks tell one another of a unit. Zero when a call begins.
struct select_state {
  uint64_t noted;        // low half: candidates; high half: keys above hi
  uint32_t lo, hi;       // keys
  uint32_t shift;        // (key - lo) >> shift is the bin
  uint32_t listed;       // keys of the bin of rank r,
  uint32_t least, most;  // ~ the least of them, and the most
  uint32_t above, ties;  // the result: keys above it, and the first so many that equal it
  uint32_t done_bracket, done_refine, order_ticket, ticket;
  uint16_t ready, failed;  // by refine; failed: to be done by the fall-back
  uint32_t any_failed;     // of the first unit of a launch: whether any of its units did
};
static_assert(sizeof(select_state) == 64);

// A tile of rows of `width` values: 2^tile_shift rows. (From the vector on in which the first value lies, if the width is 1.)
DR_HD constexpr uint32_t tile_shift(uint32_t width) {
  const unsigned log = ceil_log2(width);
  return log < 10 ? 13 - log : 3;
}

// Where things are in a unit's scratch: in bytes. The host asks for as much.
struct select_layout {
  uint32_t tiles, order_blocks, refine_blocks, slices;  // tiles: of the read; slices: of candidates
  uint32_t room;                                        // for keys in [lo, hi]
  uint64_t bins, sample, order, lookback, zeroed;       // zeroed
  uint64_t table, slice, keys, list, counts, plain;     // plain: positions of candidates come first

  DR_HD static constexpr uint32_t list_size(uint32_t target) { return 8192 + target / 512; }

  DR_HD static constexpr select_layout of(const select_unit& u, uint32_t value_size) {
    select_layout l{};
    const bool ranked = u.kind == select_largest_kind;
    if (ranked && u.d <= select_small) {
      l.zeroed = 64;
      return l;
    }
    const uint32_t shift = tile_shift(u.width), skew = u.width == 1 ? 16 / value_size - 1 : 0;
    l.tiles = static_cast<uint32_t>((uint64_t{u.d} + skew + (1u << shift) - 1) >> shift);
    l.order_blocks = l.tiles / order_tile + 1;  // (behind the last tile is the sum of all)
    l.slices = static_cast<uint32_t>((uint64_t{u.capacity} + select_slice - 1) / select_slice);
    l.room = !ranked ? 0 : u.flags & select_keys_in_kept ? u.count_max : u.capacity;
    l.refine_blocks = l.room / (collect_tile * collect_rounds) + 1;
    if (l.refine_blocks < l.order_blocks) l.refine_blocks = l.order_blocks;
    l.bins = 64;
    l.sample = l.bins + (ranked ? 4 * select_bins : 0);
    l.order = l.sample + (ranked ? 4 * select_sample_bins : 0);
    l.lookback = l.order + uint64_t{8} * l.order_blocks;
    l.zeroed = l.lookback + uint64_t{8} * l.slices;
    l.table = rounded(uint64_t{4} * u.capacity);
    l.slice = l.table + uint64_t{8} * (l.tiles + 1);
    l.keys = rounded(l.slice + uint64_t{4} * l.slices);
    l.plain = l.list = l.counts = l.keys;
    if (!ranked) return l;
    l.list = rounded(l.keys + (u.flags & select_keys_in_kept ? 0 : uint64_t{value_size} * u.capacity));
    l.counts = rounded(l.list + uint64_t{4} * list_size(u.target));
    l.plain = l.counts + uint64_t{8} * (u.d / fallback_tile + 1);
    return l;
  }

 private:
  DR_HD static constexpr uint64_t rounded(uint64_t size) { return (size + 63) / 64 * 64; }
};

// A unit with its scratch.
template <class Bits>
struct select_view {
  const select_common& common;
  const select_unit& unit;
  select_layout at;
  std::byte *zeroed, *plain;

  template <class Args>
  DR_HD static select_view of(const Args& a, const select_unit& u) {
    return {a.common, u, select_layout::of(u, sizeof(Bits)), a.common.zeroed + uint64_t{64} * u.zeroed,
            a.common.plain + uint64_t{64} * u.plain};
  }
  DR_HD bool is_ranked() const { return unit.kind == select_largest_kind; }
  DR_HD select_state& state() const { return *reinterpret_cast<select_state*>(zeroed); }
  DR_HD uint32_t* bins() const { return reinterpret_cast<uint32_t*>(zeroed + at.bins); }
  DR_HD uint32_t* sample() const { return reinterpret_cast<uint32_t*>(zeroed + at.sample); }
  DR_HD uint64_t* order() const { return reinterpret_cast<uint64_t*>(zeroed + at.order); }
  DR_HD uint64_t* lookback() const { return reinterpret_cast<uint64_t*>(zeroed + at.lookback); }
  DR_HD uint32_t* positions() const { return reinterpret_cast<uint32_t*>(plain); }
  // Of a tile: where its candidates begin in `positions`, and how many there are; from refine on, how many are in tiles before it.
  DR_HD uint32_t* table() const { return reinterpret_cast<uint32_t*>(plain + at.table); }
  DR_HD uint32_t* slice() const {
    return reinterpret_cast<uint32_t*>(plain + at.slice);
  }  // the tile in which each begins
  // The keys in [lo, hi], in no order: where the kept values will be, if that is room enough.
  DR_HD Bits* keys() const {
    return unit.flags & select_keys_in_kept ? static_cast<Bits*>(unit.kept) : reinterpret_cast<Bits*>(plain + at.keys);
  }
  DR_HD uint32_t* list() const { return reinterpret_cast<uint32_t*>(plain + at.list); }  // those of one bin
  DR_HD uint64_t* counts() const { return reinterpret_cast<uint64_t*>(plain + at.counts); }
};

// ---- Values -----------------------------------------------------------------------------------------------

// Bits: uint32_t for f32; uint16_t for f16 and bf16, whose order is the same.
template <class Bits>
inline constexpr Bits magnitude_mask = static_cast<Bits>(Bits(~Bits{0}) >> 1);
template <class Bits>
inline constexpr uint32_t key_bits = 8 * sizeof(Bits) - 1;
template <class Bits>
DR_HD constexpr uint32_t key_of(Bits b) {
  return b & static_cast<Bits>(Bits(~Bits{0}) >> 1);
}

struct alignas(16) vector16 {
  uint32_t word[4];
};
template <class T>
DR_HD T element_of(const vector16& x, uint32_t i) {
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<T>(x.word[i]);
  else
    return static_cast<T>(x.word[i / 2] >> (i % 2 * 16));
}

template <class Bits>
DR_HD float number_of(const select_common& c, Bits b) {
  if constexpr (sizeof(Bits) == 4)
    return f32_type::to_f32(b);
  else
    return c.dtype == DR_F16 ? f16_to_f32(b) : bf16_to_f32(b);
}
// What feedback adds up, in f32; and in the tensor's type.
template <class Bits>
DR_HD float accumulated(const select_common& c, float residual, Bits g) {
  return accumulated(c.gamma, number_of(c, g), c.beta, residual);
}
template <class Bits>
DR_HD Bits rounded_value(const select_common& c, float acc) {
  if constexpr (sizeof(Bits) == 4)
    return rounded_finite<f32_type>(acc);
  else
    return c.dtype == DR_F16 ? rounded_finite<f16_type>(acc) : rounded_finite<bf16_type>(acc);
}

// Element i before the read (peek), and after it (stored), when the residual holds what was accumulated.
template <class Bits>
DR_HD Bits peek(const select_common& c, const select_unit& u, uint64_t i) {
  const Bits g = static_cast<const Bits*>(u.values)[i];
  return u.residual ? rounded_value<Bits>(c, accumulated(c, u.residual[i], g)) : g;
}
template <class Bits>
DR_HD Bits stored(const select_common& c, const select_unit& u, uint64_t i) {
  return u.residual ? rounded_value<Bits>(c, u.residual[i]) : static_cast<const Bits*>(u.values)[i];
}

// Of a kept value that is not finite: the first is told. (Where the support is replaced, the values that are sent are others, and judged
// when they are gathered.)
DR_HD inline void judge_kept(const select_common& c, const select_unit& u, uint32_t key, uint64_t at) {
  if (key < c.infinity || !(u.flags & select_needs_finite)) return;
  atomic_max(&u.row->not_finite, ~at);
  raise(&u.row->fault, DR_E_ARGUMENT, DR_STREAM_VALUE, 0, 0);
}
// A kept value, the k-th.
template <class Bits>
DR_HD void keep(const select_common& c, const select_unit& u, uint64_t k, uint32_t position, Bits value) {
  if (k >= u.count_max) return;
  u.support[k] = position;
  static_cast<Bits*>(u.kept)[k] = value;
  judge_kept(c, u, key_of(value), k);
}
DR_HD inline void tell_count(const select_unit& u, uint64_t count) {
  u.row->count = count < u.count_max ? count : u.count_max;
  u.row->told = u.row->count;
}

// ---- Ranks ------------------------------------------------------------------------------------------------

struct rank_place {
  uint32_t bin, rank;  // rank: in the bin, from 1; 0 if there are not so many
};

// The bin, from the top, that holds the `rank`-th element (from 1). `bins`: aligned to 16 bytes; fewer than 2^32 elements.
template <uint32_t Bins, class Block>
DR_HD rank_place find_rank(Block& b, const uint32_t* bins, uint32_t rank) {
  constexpr uint32_t share = Bins / Block::lanes;
  static_assert(share % 4 == 0 && Bins % Block::lanes == 0);
  struct part {
    vector16 of[share / 4];
  };
  typename Block::template each<part> mine;
  typename Block::template each<uint32_t> before;
  typename Block::template each<uint64_t> found;
  b.phase([&](unsigned lane) {
    const auto* const from = reinterpret_cast<const vector16*>(bins) + (Block::lanes - 1 - lane) * (share / 4);
    uint32_t sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < share / 4; ++i) {
      mine[lane].of[i] = from[i];
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) sum += mine[lane].of[i].word[k];
    }
    before[lane] = sum;
  });
  b.exclusive_sum(before);
  b.phase([&](unsigned lane) {
    const uint32_t first = (Block::lanes - 1 - lane) * share;
    uint32_t sum = before[lane];
    found[lane] = 0;
#pragma unroll
    for (uint32_t i = share; i-- > 0;) {
      const uint32_t here = mine[lane].of[i / 4].word[i % 4];
      if (sum < rank && rank - sum <= here) found[lane] = (uint64_t{first + i} << 32) | (rank - sum);
      sum += here;
    }
  });
  const uint64_t all = b.max(found);
  return {static_cast<uint32_t>(all >> 32), static_cast<uint32_t>(all)};
}

struct exact_rank {
  uint32_t key, ties;  // ties: the rank among those that equal it; 0: there are not so many keys
};

// The key of rank `rank` among n keys key(i), by radix: keys of `bits` bits, at most 31; others do not count. `hist`: 2048 words of shared
// memory.
template <class Block, class F>
DR_HD exact_rank select_exactly(Block& b, uint32_t* hist, uint32_t n, uint32_t rank, uint32_t bits, F&& key) {
  constexpr uint32_t digit = 11;
  static_assert(1u << digit == select_bins);
  uint32_t prefix = 0;
  for (uint32_t shift = bits; shift > 0;) {
    const uint32_t top = shift;
    shift = shift > digit ? shift - digit : 0;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_bins; i += Block::lanes) hist[i] = 0;
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < n; i += Block::lanes) {
        const uint32_t k = key(i);
        if (k >> top == prefix) atomic_add(hist + (k >> shift & (select_bins - 1) & ((1u << (top - shift)) - 1)), 1u);
      }
    });
    const rank_place p = find_rank<select_bins>(b, hist, rank);
    if (p.rank == 0) return {0, 0};
    prefix = prefix << (top - shift) | p.bin;
    rank = p.rank;
  }
  return {prefix, rank};
}

// Elements [begin, end) in order, key(i): those above `above`, and those equal to it while fewer than `ties` came before; never zeros. Each
// lane has `share` of them at a time. Returns how many there are: above in the high half, equal in the low half.
template <class Bits, class Block, class F>
DR_HD uint64_t write_range(Block& b, const select_common& c, const select_unit& u, uint32_t begin, uint32_t end,
                           uint32_t share, const exact_rank& cut, uint64_t before, F&& key) {
  typename Block::template each<uint64_t> mine;
  for (uint64_t first = begin; first < end; first += uint64_t{share} * Block::lanes) {
    b.phase([&](unsigned lane) {
      mine[lane] = 0;
      const uint64_t at = first + uint64_t{lane} * share, stop = at + share < end ? at + share : end;
      for (uint64_t i = at; i < stop; ++i) {
        const uint32_t k = key(i);
        mine[lane] += k > cut.key ? uint64_t{1} << 32 : k == cut.key && k;
      }
    });
    const uint64_t all = b.exclusive_sum(mine);
    b.phase([&](unsigned lane) {
      const uint64_t sum = before + mine[lane];
      uint64_t over = sum >> 32, equal = static_cast<uint32_t>(sum);
      const uint64_t at = first + uint64_t{lane} * share, stop = at + share < end ? at + share : end;
      for (uint64_t i = at; i < stop; ++i) {
        const uint32_t k = key(i);
        const bool tie = k == cut.key && k;
        if (k > cut.key || (tie && equal < cut.ties))
          keep(c, u, over + (equal < cut.ties ? equal : cut.ties), static_cast<uint32_t>(i), stored<Bits>(c, u, i));
        over += k > cut.key;
        equal += tie;
      }
    });
    before += all;
  }
  return before;
}
DR_HD inline uint64_t kept_of(uint64_t counted, uint32_t ties) {
  const uint64_t equal = static_cast<uint32_t>(counted);
  return (counted >> 32) + (equal < ties ? equal : ties);
}

// ---- Bracket ----------------------------------------------------------------------------------------------

// Ranks in a sample: six standard deviations, and some, where they are few.
DR_HD inline double bracket_slack(double expected) { return 6 * sqrt(expected) + 4; }

// Lanes that have runs of 32 each find them in banks of their own.
DR_HD constexpr uint32_t padded(uint32_t i) { return i + i / 32; }

template <class Bits, size_t N>
struct select_bracket {
  static constexpr const char* name = "select_bracket";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  // A sample's bins; or all keys of a small tensor, behind bins of theirs.
  struct shared {
    alignas(16) uint32_t word[select_bins + padded(select_small)];
  };
  static constexpr uint32_t sample_shift = key_bits<Bits> - 13;
  static_assert(select_sample_bins == 1u << 13);

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    if (u.row->fault.code != DR_OK) return;
    const view v = view::of(a, u);
    if (u.d <= select_small) return solve(b, s, v);
    sample(b, s, v, b.index() - u.first_tile);
    if (last_of(b, &v.state().done_bracket, u.sample_blocks)) set_bracket(b, v);
  }

  // All of a small tensor.
  template <class Block>
  DR_HD static void solve(Block& b, shared& s, const view& v) {
    const select_unit& u = v.unit;
    uint32_t* const keys = s.word + select_bins;
    b.phase([&](unsigned lane) {
#pragma unroll 8
      for (uint32_t i = lane; i < u.d; i += lanes) {
        Bits value = static_cast<const Bits*>(u.values)[i];
        if (u.residual) {
          const float acc = accumulated(v.common, u.residual[i], value);
          u.residual[i] = acc;
          value = rounded_value<Bits>(v.common, acc);
        }
        keys[padded(i)] = key_of(value);
      }
    });
    const auto key = [&](uint64_t i) { return keys[padded(static_cast<uint32_t>(i))]; };
    const exact_rank r = select_exactly(b, s.word, u.d, u.target, key_bits<Bits>, [&](uint32_t i) {
      const uint32_t k = key(i);
      return k ? k : ~0u;
    });
    const uint64_t all = write_range<Bits>(b, v.common, u, 0, u.d, (u.d + lanes - 1) / lanes, r, 0, key);
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(u, kept_of(all, r.ties));
    });
  }

  template <class Block>
  DR_HD static void sample(Block& b, shared& s, const view& v, uint32_t tile) {
    constexpr uint32_t pieces = sample_tile / sample_piece;
    const select_unit& u = v.unit;
    const uint32_t stratum = u.d / (u.sample_blocks * pieces), room = stratum - sample_piece + 1;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_sample_bins; i += lanes) s.word[i] = 0;
    });
    b.phase([&](unsigned lane) {
#pragma unroll 8
      for (uint32_t k = 0; k < sample_tile / lanes; ++k) {
        const uint32_t i = k * lanes + lane, piece = tile * pieces + i / sample_piece;
        // A piece at a place of its own in every stratum, so that no period of the data meets one of ours.
        const uint64_t chance = mix64(piece + golden) >> 32;
        const uint32_t at = piece * stratum + static_cast<uint32_t>(chance * room >> 32) + i % sample_piece;
        if (at < u.d) atomic_add(s.word + (key_of(peek<Bits>(v.common, u, at)) >> sample_shift), 1u);
      }
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_sample_bins; i += lanes)
        if (s.word[i]) atomic_add(v.sample() + i, s.word[i]);
    });
  }

  // lo and hi beside the sample's expected rank.
  template <class Block>
  DR_HD static void set_bracket(Block& b, const view& v) {
    const select_unit& u = v.unit;
    const double size = static_cast<double>(u.sample_blocks) * sample_tile,
                 expected = size * static_cast<double>(u.target) / static_cast<double>(u.d);
    const double slack = bracket_slack(expected);
    const bool has_high = expected > slack + 1;
    const uint32_t* const bins = v.sample();
    const rank_place low = find_rank<select_sample_bins>(b, bins, static_cast<uint32_t>(expected + slack));
    const rank_place high =
        find_rank<select_sample_bins>(b, bins, has_high ? static_cast<uint32_t>(expected - slack) : 1);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      select_state& s = v.state();
      s.lo = low.rank && low.bin ? inside(bins, low, true) : 1;  // (zeros are in bin 0)
      s.hi = has_high && high.rank ? inside(bins, high, false) : magnitude_mask<Bits>;
      if (s.hi < s.lo) s.hi = s.lo;
      while ((s.hi - s.lo) >> s.shift >= select_bins) ++s.shift;
    });
  }

  // A key of the bin, as far from its top as the rank says; `below`: rather too low than too high, by a 32nd of the bin.
  DR_HD static uint32_t inside(const uint32_t* bins, const rank_place& p, bool below) {
    constexpr uint32_t width = 1u << sample_shift, margin = width / 32;
    const auto down = static_cast<uint32_t>(uint64_t{width} * p.rank / bins[p.bin]);
    const uint32_t top = (p.bin << sample_shift) + (width - 1);
    if (below) return top - (down + margin < width - 1 ? down + margin : width - 1);
    return top - (down > margin + 1 ? down - margin - 1 : 0);
  }
};

// ---- Filter -----------------------------------------------------------------------------------------------

template <class Bits, bool Feedback, size_t N>
struct select_filter {
  static constexpr const char* name = "select_filter";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  // A lane reads `vectors` vectors of `length` values, one every `lanes`; and then decides about all of `own` consecutive values.
  static constexpr uint32_t length = 16 / sizeof(Bits), own = select_tile / lanes, vectors = own / length;
  // Of a vector: a bit for each of its values that is a candidate; above them, one for each above hi.
  using mask = std::conditional_t<length == 4, uint8_t, uint16_t>;
  static constexpr uint64_t candidates = length == 4 ? 0x0f0f0f0f0f0f0f0f : 0x00ff00ff00ff00ff;
  struct shared {
    union {
      alignas(8) mask of[lanes * vectors];
      uint32_t row[select_tile / 2 / 32];  // a bit for each row of many values that is not all zeros
    };
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    const view v = view::of(a, u);
    const uint32_t tile = b.index() - u.first_tile;
    if (u.width != 1) return rows(b, s, v, tile);
    const select_state& state = v.state();
    const bool live = u.row->fault.code == DR_OK, ranked = v.is_ranked();
    const uint32_t lo = ranked ? state.lo : u.low, hi = ranked ? state.hi : magnitude_mask<Bits>, shift = state.shift;
    // Vectors are aligned, so the first may begin before the values do.
    const uint64_t skew = reinterpret_cast<uintptr_t>(u.values) % 16 / sizeof(Bits),
                   begin = uint64_t{tile} * select_tile - skew;
    const bool inner = uint64_t{tile} * select_tile >= skew && begin + select_tile <= u.d;
    typename Block::template each<uint64_t> masks;
    typename Block::template each<uint32_t> places;
    b.phase([&](unsigned lane) {
      vector16 x[vectors];
#pragma unroll
      for (uint32_t r = 0; r < vectors; ++r) x[r] = read(u, begin + (r * lanes + lane) * length, inner);
      // (Now, not before: that it is live is still on its way, too.)
      if (!live) return;
#pragma unroll
      for (uint32_t r = 0; r < vectors; ++r) {
        if constexpr (Feedback) accumulate(v.common, u, begin + (r * lanes + lane) * length, inner, x[r]);
        s.of[r * lanes + lane] = judge(x[r], lo, hi);
      }
    });
    if (!live) return;
    b.phase([&](unsigned lane) {
      std::memcpy(&masks[lane], s.of + lane * vectors, sizeof masks[lane]);
      places[lane] =
          static_cast<uint32_t>(popcount(masks[lane] & candidates) | popcount(masks[lane] & ~candidates) << 16);
    });
    const uint32_t all = b.exclusive_sum(places), count = all & 0xffff;
    const uint64_t was = note(b, v, tile, count, all >> 16);
    if (count == 0) return;
    b.phase([&](unsigned lane) {
      uint32_t to = static_cast<uint32_t>(was) + (places[lane] & 0xffff),
               key_to = to - static_cast<uint32_t>(was >> 32) - (places[lane] >> 16);
      for (uint64_t left = masks[lane] & candidates; left; left &= left - 1) {
        const auto bit = static_cast<uint32_t>(countr_zero(left));
        const uint64_t i = begin + lane * own + bit / (2 * length) * length + bit % (2 * length);
        if (to < u.capacity) v.positions()[to] = static_cast<uint32_t>(i);
        ++to;
        if (!ranked || masks[lane] >> bit >> length & 1) continue;
        const uint32_t key = key_of(stored<Bits>(v.common, u, i)), bin = (key - lo) >> shift;
        if (bin < select_bins) atomic_add(v.bins() + bin, 1u);
        if (key_to < v.at.room) v.keys()[key_to] = static_cast<Bits>(key);
        ++key_to;
      }
    });
  }

  // Zeros for what is not of the tensor.
  DR_HD static vector16 read(const select_unit& u, uint64_t i, bool inner) {
    const auto* const from = static_cast<const Bits*>(u.values);
    if (inner) return *reinterpret_cast<const vector16*>(from + i);
    vector16 x{};
#pragma unroll
    for (uint32_t c = 0; c < length; ++c)
      if (i + c < u.d) put(x, c, from[i + c]);
    return x;
  }
  DR_HD static void put(vector16& x, uint32_t c, uint32_t value) {
    if constexpr (length == 4)
      x.word[c] = value;
    else
      x.word[c / 2] = (x.word[c / 2] & (c % 2 ? 0xffff : 0xffff0000)) | value << c % 2 * 16;
  }

  // key >= lo where key + (top - lo) reaches the sign's bit, which nothing carries beyond; two keys a word, if they are short.
  DR_HD static mask judge(const vector16& x, uint32_t lo, uint32_t hi) {
    constexpr uint32_t ones = length == 4 ? 1 : 0x10001, top = 1u << key_bits<Bits>, step = length / 4;
    const uint32_t from = (top - lo) * ones, beyond = (top - 1 - hi) * ones;
    uint32_t some = 0, above = 0;
#pragma unroll
    for (uint32_t q = 4; q-- > 0;) {
      const uint32_t key = x.word[q] & ~(top * ones);
      some = some << step | ((key + from) >> key_bits<Bits> & ones);
      above = above << step | ((key + beyond) >> key_bits<Bits> & ones);
    }
    if constexpr (length == 8) {
      some = (some | some >> 15) & 0xff;
      above = (above | above >> 15) & 0xff;
    }
    return static_cast<mask>(some | above << length);
  }

  // m := acc, and its rounded values.
  DR_HD static void accumulate(const select_common& c, const select_unit& u, uint64_t i, bool inner, vector16& x) {
    const bool wide = inner && reinterpret_cast<uintptr_t>(u.residual + i) % 16 == 0;
#pragma unroll
    for (uint32_t q = 0; q < length; q += 4) {
      float* const m = u.residual + i + q;
      vector16 w{};
      if (wide) {
        w = *reinterpret_cast<const vector16*>(m);
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k)
          if (i + q + k < u.d) w.word[k] = std::bit_cast<uint32_t>(m[k]);
      }
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        const float acc = accumulated(c, std::bit_cast<float>(w.word[k]), element_of<Bits>(x, q + k));
        w.word[k] = std::bit_cast<uint32_t>(acc);
        put(x, q + k, inner || i + q + k < u.d ? rounded_value<Bits>(c, acc) : Bits{0});
      }
      if (wide) {
        *reinterpret_cast<vector16*>(m) = w;
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k)
          if (i + q + k < u.d) m[k] = std::bit_cast<float>(w.word[k]);
      }
    }
  }

  // Takes room for a tile's candidates, and says so. Returns what was noted before.
  template <class Block>
  DR_HD static uint64_t note(Block& b, const view& v, uint32_t tile, uint32_t count, uint32_t above) {
    return b.template once<uint64_t>([&] {
      const uint64_t was = atomic_add(&v.state().noted, uint64_t{above} << 32 | count);
      v.table()[2 * uint64_t{tile}] = static_cast<uint32_t>(was);
      v.table()[2 * uint64_t{tile} + 1] = count;
      return was;
    });
  }

  // Rows of many values: kept if any of them is not a zero.
  template <class Block>
  DR_HD static void rows(Block& b, shared& s, const view& v, uint32_t tile) {
    const select_unit& u = v.unit;
    if (u.row->fault.code != DR_OK) return;
    const uint32_t shift = tile_shift(u.width), begin = tile << shift;
    const uint32_t count = u.d - begin < 1u << shift ? u.d - begin : 1u << shift, words = (count + 31) / 32;
    const auto* const values = static_cast<const Bits*>(u.values) + uint64_t{begin} * u.width;
    typename Block::template each<uint32_t> places;
    b.phase([&](unsigned lane) {
      if (lane < words) s.row[lane] = 0;
    });
    b.phase([&](unsigned lane) {
      const uint32_t whole = lanes / u.width, rest = lanes % u.width;
      uint32_t row = lane / u.width, column = lane % u.width, last = ~0u;
      for (uint64_t i = lane; row < count; i += lanes) {
        if (key_of(values[i]) && row != last) atomic_or(s.row + row / 32, 1u << row % 32);
        if (key_of(values[i])) last = row;
        row += whole;
        column += rest;
        if (column >= u.width) {
          column -= u.width;
          ++row;
        }
      }
    });
    b.phase([&](unsigned lane) { places[lane] = lane < words ? static_cast<uint32_t>(popcount(s.row[lane])) : 0; });
    const uint32_t all = b.exclusive_sum(places);
    const auto was = static_cast<uint32_t>(note(b, v, tile, all, 0));
    b.phase([&](unsigned lane) {
      uint32_t to = was + places[lane];
      for (uint32_t left = lane < words ? s.row[lane] : 0; left; left &= left - 1) {
        if (to < u.capacity) v.positions()[to] = begin + lane * 32 + static_cast<uint32_t>(countr_zero(left));
        ++to;
      }
    });
  }
};

// ---- Refine -----------------------------------------------------------------------------------------------

template <class Bits, size_t N>
struct select_refine {
  static constexpr const char* name = "select_refine";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  struct shared {
    alignas(16) uint32_t hist[select_bins];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    if (u.row->fault.code != DR_OK) return;
    const view v = view::of(a, u);
    select_state& state = v.state();
    const auto noted = static_cast<uint32_t>(state.noted), above = static_cast<uint32_t>(state.noted >> 32);
    const uint32_t lo = state.lo, shift = state.shift, index = b.index() - u.first_tile;
    const bool all = !v.is_ranked() || (noted < u.target && lo == 1);
    bool fails =
        noted > u.capacity || (!all && (noted < u.target || above >= u.target || (shift && noted - above > v.at.room)));
    if (index < v.at.order_blocks) order(b, v);
    exact_rank cut{0, 0};  // every candidate is above it
    if (!all && !fails) {
      const rank_place place = find_rank<select_bins>(b, v.bins(), u.target - above);
      cut = {lo + (place.bin << shift), place.rank};
      if (shift) collect(b, v, index, noted - above, place.bin);
    }
    if (!last_of(b, &state.done_refine, v.at.refine_blocks)) return;
    if (!all && !fails && shift) fails = !settle(b, s, v, cut);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      state.above = cut.key;
      state.ties = cut.ties;
      state.ready = 1;
      state.failed = fails;
      if (fails) atomic_or(&view::of(a, a.job[0]).state().any_failed, 1u);
    });
  }

  // Sums of the tiles' counts, so that candidates have an order; and where in it slices begin.
  template <class Block>
  DR_HD static void order(Block& b, const view& v) {
    constexpr uint32_t share = order_tile / lanes;
    struct part {
      uint32_t count[share];
    };
    typename Block::template each<part> mine;
    typename Block::template each<uint32_t> before;
    const uint32_t k = take_tile(b, &v.state().order_ticket);
    b.phase([&](unsigned lane) {
      before[lane] = 0;
#pragma unroll
      for (uint32_t i = 0; i < share; ++i) {
        const uint32_t t = k * order_tile + lane * share + i;
        before[lane] += mine[lane].count[i] = t < v.at.tiles ? v.table()[2 * uint64_t{t} + 1] : 0;
      }
    });
    const uint32_t own = b.exclusive_sum(before);
    const auto base = static_cast<uint32_t>(lookback(b, v.order(), k, own));
    b.phase([&](unsigned lane) {
      uint32_t rank = base + before[lane];
#pragma unroll
      for (uint32_t i = 0; i < share; ++i) {
        const uint32_t t = k * order_tile + lane * share + i, count = mine[lane].count[i];
        if (t > v.at.tiles) break;
        v.table()[2 * uint64_t{t} + 1] = rank;  // (behind the last: of all)
        for (uint64_t m = (uint64_t{rank} + select_slice - 1) / select_slice;
             m * select_slice < uint64_t{rank} + count && m < v.at.slices; ++m)
          v.slice()[m] = t;
        rank += count;
      }
    });
  }

  // The keys of a bin, in any order: listed while there is room.
  template <class Block>
  DR_HD static void collect(Block& b, const view& v, uint32_t index, uint32_t n, uint32_t bin) {
    constexpr uint32_t share = collect_tile / lanes;
    const uint32_t room = select_layout::list_size(v.unit.target);
    select_state& state = v.state();
    const uint32_t lo = state.lo, shift = state.shift;
    typename Block::template each<uint32_t> found, places, least, most;
    for (uint64_t begin = uint64_t{index} * collect_tile; begin < n;
         begin += uint64_t{v.at.refine_blocks} * collect_tile) {
      b.phase([&](unsigned lane) {
        found[lane] = least[lane] = most[lane] = 0;
#pragma unroll
        for (uint32_t k = 0; k < share; ++k) {
          const uint64_t i = begin + k * lanes + lane;
          const uint32_t key = i < n ? v.keys()[i] : 0;
          if (i >= n || (key - lo) >> shift != bin) continue;
          found[lane] |= 1u << k;
          if (~key > least[lane]) least[lane] = ~key;
          if (key > most[lane]) most[lane] = key;
        }
        places[lane] = static_cast<uint32_t>(popcount(found[lane]));
      });
      const uint32_t all = b.exclusive_sum(places);
      if (all == 0) continue;
      const uint32_t low = b.max(least), high = b.max(most);
      const uint32_t at = b.template once<uint32_t>([&] {
        atomic_max(&state.least, low);
        atomic_max(&state.most, high);
        return atomic_add(&state.listed, all);
      });
      b.phase([&](unsigned lane) {
        uint32_t to = at + places[lane];
        for (uint32_t left = found[lane]; left && to < room; left &= left - 1)
          v.list()[to++] = v.keys()[begin + static_cast<uint32_t>(countr_zero(left)) * lanes + lane];
      });
    }
  }

  // The key in the bin. False if there are too many, and not all the same.
  template <class Block>
  DR_HD static bool settle(Block& b, shared& s, const view& v, exact_rank& cut) {
    const select_state& state = v.state();
    const uint32_t first = cut.key, n = state.listed;
    if (~state.least == state.most) {
      cut.key = state.most;
      return true;
    }
    if (n > select_layout::list_size(v.unit.target)) return false;
    cut = select_exactly(b, s.hist, n, cut.ties, state.shift, [&](uint32_t i) { return v.list()[i] - first; });
    cut.key += first;
    return true;
  }
};

// ---- Compact ----------------------------------------------------------------------------------------------

template <class Bits, size_t N>
struct select_compact {
  static constexpr const char* name = "select_compact";
  static constexpr unsigned lanes = select_lanes, grid_phases = 1;
  using args = select_args<N>;
  using view = select_view<Bits>;
  static constexpr uint32_t share = select_slice / lanes, words = select_slice / 32;
  struct shared {
    alignas(16) uint32_t position[select_slice];
    // What is added to the number of a candidate to find its position: of a tile that begins with it; and at multiples of 32, of a tile
    // that began before. `starts`: a bit for each candidate with which a tile begins. Later: values.
    union {
      uint32_t offset[select_slice];
      Bits value[select_slice];
    };
    uint32_t starts[words], goes_on[words];
  };
  struct part {
    uint32_t position[share];
    Bits value[share];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const select_unit& u = job_of_tile(a, b.index());
    const view v = view::of(a, u);
    select_state& state = v.state();
    // (Not the row's fault: other blocks of this launch may raise it, and none may leave while others look back.)
    if (!state.ready || state.failed) return;
    const auto noted = static_cast<uint32_t>(state.noted);
    const uint32_t blocks = noted ? (noted - 1) / select_slice + 1 : 0, index = b.index() - u.first_tile;
    if (index >= blocks) {
      if (noted == 0 && index == 0)
        b.phase([&](unsigned lane) {
          if (lane == 0) tell_count(u, 0);
        });
      return;
    }
    const uint32_t slice = take_tile(b, &state.ticket), begin = slice * select_slice;
    const uint32_t count = noted - begin < select_slice ? noted - begin : select_slice;
    gather(b, s, v, begin, count, slice + 1 < blocks ? v.slice()[slice + 1] : v.at.tiles - 1);
    cut(b, s, v, slice, count, slice + 1 == blocks);
  }

  // Positions of candidates, in order.
  template <class Block>
  DR_HD static void gather(Block& b, shared& s, const view& v, uint32_t begin, uint32_t count, uint32_t last) {
    const uint32_t first = v.slice()[begin / select_slice];
    b.phase([&](unsigned lane) {
      if (lane < words) s.starts[lane] = 0;
    });
    b.phase([&](unsigned lane) {
      for (uint64_t t = uint64_t{first} + lane; t <= last; t += lanes) {
        const uint32_t* const entry = v.table() + 2 * t;
        // Ranks in the slice, of the tile's first candidate and behind its last.
        const int64_t from = int64_t{entry[1]} - begin, to = int64_t{entry[3]} - begin;
        if (from >= to || to <= 0 || from >= count) continue;
        const auto start = static_cast<uint32_t>(from > 0 ? from : 0),
                   end = to < count ? static_cast<uint32_t>(to) : count;
        const uint32_t offset = entry[0] + begin - entry[1];
        s.offset[start] = offset;
        atomic_or(s.starts + start / 32, 1u << start % 32);
        for (uint32_t w = (start + 31) / 32; w * 32 < end; ++w) s.goes_on[w] = offset;
      }
    });
    b.phase([&](unsigned lane) {
#pragma unroll 8
      for (uint32_t i = lane; i < count; i += lanes) {
        const uint32_t w = i / 32, before = s.starts[w] & ((2u << i % 32) - 1);
        const uint32_t offset = before ? s.offset[w * 32 + static_cast<uint32_t>(bit_width(before)) - 1] : s.goes_on[w];
        s.position[i] = v.positions()[offset + i];
      }
    });
  }

  // Of candidates in order, those above the threshold and the first that equal it.
  template <class Block>
  DR_HD static void cut(Block& b, shared& s, const view& v, uint32_t slice, uint32_t count, bool last) {
    const select_unit& u = v.unit;
    const uint32_t above = v.state().above, ties = v.state().ties;
    typename Block::template each<part> mine;
    typename Block::template each<uint64_t> places;
    typename Block::template each<uint32_t> over, equal;
    b.phase([&](unsigned lane) {
      part& p = mine[lane];
      over[lane] = equal[lane] = 0;
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        const uint32_t i = lane * share + k;
        p.position[k] = i < count ? s.position[i] : 0;
      }
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        if (lane * share + k >= count) continue;
        // (Of a row of many values every candidate is kept.)
        p.value[k] = u.width == 1 ? stored<Bits>(v.common, u, p.position[k]) : Bits{0};
        const uint32_t key = above ? key_of(p.value[k]) : 1;
        over[lane] |= (key > above ? 1u : 0u) << k;
        equal[lane] |= (key == above ? 1u : 0u) << k;
      }
      places[lane] = static_cast<uint64_t>(popcount(over[lane])) << 31 | popcount(equal[lane]);
    });
    const uint64_t all = b.exclusive_sum(places), before = lookback(b, v.lookback(), slice, all);
    const uint64_t first = kept_of(before, ties), end = kept_of(before + all, ties);
    b.phase([&](unsigned lane) {
      const uint64_t sum = before + places[lane];
      uint64_t to = (sum >> 31) - first, tie = sum & low_half;
#pragma unroll
      for (uint32_t k = 0; k < share; ++k) {
        if (!((over[lane] | equal[lane]) >> k & 1)) continue;
        const uint64_t at = to + (tie < ties ? tie : ties);
        if (over[lane] >> k & 1 || tie < ties) {
          s.position[at] = mine[lane].position[k];
          s.value[at] = mine[lane].value[k];
        }
        to += over[lane] >> k & 1;
        tie += equal[lane] >> k & 1;
      }
    });
    if (u.width == 1)
      write(b, s, v, first, static_cast<uint32_t>(end - first));
    else
      write_rows(b, s, v, first, static_cast<uint32_t>(end - first));
    if (!last) return;
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(u, end);
    });
  }

  static constexpr uint64_t low_half = (uint64_t{1} << 31) - 1;
  // Two counts of 31 bits each: how many are kept.
  DR_HD static uint64_t kept_of(uint64_t counts, uint32_t ties) {
    return (counts >> 31) + ((counts & low_half) < ties ? counts & low_half : ties);
  }

  template <class Block>
  DR_HD static void write(Block& b, shared& s, const view& v, uint64_t first, uint32_t n) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < n; i += lanes) keep(v.common, v.unit, first + i, s.position[i], s.value[i]);
    });
  }
  template <class Block>
  DR_HD static void write_rows(Block& b, shared& s, const view& v, uint64_t first, uint32_t n) {
    const select_unit& u = v.unit;
    if (first >= u.count_max) return;
    if (n > u.count_max - first) n = static_cast<uint32_t>(u.count_max - first);
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < n; i += lanes) u.support[first + i] = s.position[i];
      const uint32_t whole = lanes / u.width, rest = lanes % u.width;
      uint32_t row = lane / u.width, column = lane % u.width;
      for (uint64_t at = first * u.width + lane; row < n; at += lanes) {
        const Bits value = static_cast<const Bits*>(u.values)[uint64_t{s.position[row]} * u.width + column];
        static_cast<Bits*>(u.kept)[at] = value;
        judge_kept(v.common, u, key_of(value), at);
        row += whole;
        column += rest;
        if (column >= u.width) {
          column -= u.width;
          ++row;
        }
      }
    });
  }
};

// ---- Fall-back --------------------------------------------------------------------------------------------

template <class Bits, size_t N>
struct select_fallback {
  // It is launched whether it is needed or not, and cooperative: all blocks must be there before one begins. So there are few (a processor
  // has one beside whatever else it does), and each has many loads under way.
  static constexpr const char* name = "select_fallback";
  static constexpr unsigned lanes = select_lanes;
  static constexpr unsigned grid_phases = 6;  // zero · three digits · counts · writes
  using args = select_args<N>;
  using view = select_view<Bits>;
  struct shared {
    alignas(16) uint32_t hist[select_bins];
  };

  // Whether there is nothing to do: then no block waits for another.
  DR_HD static bool idle(const args& a) { return view::of(a, a.job[0]).state().any_failed == 0; }

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned phase) {
    for (uint32_t i = 0; i < a.jobs; ++i) {
      const select_unit& u = a.job[i];
      if (u.d <= select_small || u.kind != select_largest_kind) continue;
      const view v = view::of(a, u);
      if (!v.state().failed) continue;
      // Blocks have runs of elements; of a short tensor some have none.
      const uint32_t most = (u.d - 1) / fallback_tile + 1, blocks = b.blocks() < most ? b.blocks() : most;
      if (b.index() >= blocks) continue;
      const uint32_t each = u.d / blocks, longer = u.d % blocks, index = b.index();
      const uint32_t begin = each * index + (index < longer ? index : longer), end = begin + each + (index < longer);
      if (phase == 0)
        zero(b, v, blocks);
      else if (phase <= 3)
        count_digit(b, s, v, phase - 1, begin, end);
      else if (phase == 4)
        count(b, v, begin, end);
      else
        write(b, v, begin, end, index + 1 == blocks);
    }
  }

  DR_HD static constexpr uint32_t digit_bits(uint32_t digit) { return digit == 0 ? 11 : 10; }

  // Three histograms, where the sample's was.
  template <class Block>
  DR_HD static void zero(Block& b, const view& v, uint32_t blocks) {
    b.phase([&](unsigned lane) {
      for (uint32_t i = b.index() * lanes + lane; i < 3 * select_bins; i += blocks * lanes) v.sample()[i] = 0;
    });
  }

  // The threshold as far as `digits` digits tell it.
  template <class Block>
  DR_HD static exact_rank known(Block& b, const view& v, uint32_t digits) {
    exact_rank r{0, v.unit.target};
    for (uint32_t k = 0; k < digits; ++k) {
      const rank_place p = find_rank<select_bins>(b, v.sample() + k * select_bins, r.ties);
      if (p.rank == 0) return {0, 0};  // fewer than wanted are not zero: all of them are kept
      r = {r.key << digit_bits(k) | p.bin, p.rank};
    }
    return r;
  }

  template <class Block>
  DR_HD static void count_digit(Block& b, shared& s, const view& v, uint32_t digit, uint32_t begin, uint32_t end) {
    const exact_rank r = known(b, v, digit);
    if (r.ties == 0) return;
    const uint32_t bits = digit_bits(digit), shift = digit == 0 ? 20 : digit == 1 ? 10 : 0;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_bins; i += lanes) s.hist[i] = 0;
    });
    b.phase([&](unsigned lane) {
      each_key(v, begin, end, lane, [&](uint32_t key) {
        if (key && uint64_t{key} >> shift >> bits == r.key)
          atomic_add(s.hist + (key >> shift & ((1u << bits) - 1)), 1u);
      });
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < select_bins; i += lanes)
        if (s.hist[i]) atomic_add(v.sample() + digit * select_bins + i, s.hist[i]);
    });
  }

  // What a block has: above in the high half, equal in the low half.
  template <class Block>
  DR_HD static void count(Block& b, const view& v, uint32_t begin, uint32_t end) {
    const exact_rank r = known(b, v, 3);
    typename Block::template each<uint64_t> sum;
    b.phase([&](unsigned lane) {
      uint64_t own = 0;
      each_key(v, begin, end, lane,
               [&](uint32_t key) { own += key > r.key ? uint64_t{1} << 32 : key == r.key && key; });
      sum[lane] = own;
    });
    const uint64_t all = b.sum(sum);
    b.phase([&](unsigned lane) {
      if (lane == 0) v.counts()[b.index()] = all;
    });
  }

  // What a number of the tensor, or of its residual, is as a key.
  DR_HD static uint32_t key_in(const view&, Bits b) { return key_of(b); }
  DR_HD static uint32_t key_in(const view& v, float acc) { return key_of(rounded_value<Bits>(v.common, acc)); }

  // f(key) for a lane's part of the elements [begin, end), in no order.
  template <class F>
  DR_HD static void each_key(const view& v, uint32_t begin, uint32_t end, unsigned lane, F&& f) {
    if (v.unit.residual)
      each_key_in(v, v.unit.residual + begin, end - begin, lane, f);
    else
      each_key_in(v, static_cast<const Bits*>(v.unit.values) + begin, end - begin, lane, f);
  }
  template <class T, class F>
  DR_HD static void each_key_in(const view& v, const T* from, uint32_t n, unsigned lane, F&& f) {
    constexpr uint32_t length = 16 / sizeof(T), deep = 4;
    const uint32_t off = static_cast<uint32_t>((16 - reinterpret_cast<uintptr_t>(from) % 16) % 16 / sizeof(T));
    const uint32_t head = off < n ? off : n, vectors = (n - head) / length;
    const auto* const at = reinterpret_cast<const vector16*>(from + head);
    for (uint64_t i = lane; i < head; i += lanes) f(key_in(v, from[i]));
    for (uint64_t i = uint64_t{head} + vectors * length + lane; i < n; i += lanes) f(key_in(v, from[i]));
    for (uint64_t i = lane; i < vectors; i += deep * lanes) {
      vector16 x[deep];
#pragma unroll
      for (uint32_t k = 0; k < deep; ++k)
        if (i + k * lanes < vectors) x[k] = at[i + k * lanes];
#pragma unroll
      for (uint32_t k = 0; k < deep; ++k) {
        if (i + k * lanes >= vectors) continue;
#pragma unroll
        for (uint32_t c = 0; c < length; ++c) f(key_in(v, element_of<T>(x[k], c)));
      }
    }
  }

  // As write_range, but of vectors. `from`: the tensor, or its residual.
  template <class Block, class T>
  DR_HD static uint64_t write_from(Block& b, const view& v, const T* from, uint32_t begin, uint32_t end,
                                   const exact_rank& cut, uint64_t before) {
    constexpr uint32_t length = 16 / sizeof(T), own = 16;  // consecutive elements of a lane
    // Vectors are aligned, so the first may begin before the elements do.
    const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from + begin) % 16 / sizeof(T));
    const uint64_t span = uint64_t{lead} + (end - begin);
    typename Block::template each<uint32_t> over, equal;
    typename Block::template each<uint64_t> places;
    for (uint64_t first = 0; first < span; first += uint64_t{own} * lanes) {
      b.phase([&](unsigned lane) {
        const uint64_t at = first + uint64_t{lane} * own, i = begin + at - lead;
        over[lane] = equal[lane] = 0;
        const auto take = [&](uint32_t k, T number) {
          const uint32_t key = key_in(v, number);
          over[lane] |= (key > cut.key ? 1u : 0u) << k;
          equal[lane] |= (key == cut.key && key ? 1u : 0u) << k;
        };
        if (at >= lead && at + own <= span) {
          vector16 x[own / length];
#pragma unroll
          for (uint32_t q = 0; q < own / length; ++q) x[q] = reinterpret_cast<const vector16*>(from + i)[q];
#pragma unroll
          for (uint32_t k = 0; k < own; ++k) take(k, element_of<T>(x[k / length], k % length));
        } else {
          for (uint32_t k = 0; k < own; ++k)
            if (at + k >= lead && at + k < span) take(k, from[i + k]);
        }
        places[lane] = uint64_t{popcount(over[lane])} << 32 | popcount(equal[lane]);
      });
      const uint64_t all = b.exclusive_sum(places);
      b.phase([&](unsigned lane) {
        const uint64_t sum = before + places[lane], i = begin + first + uint64_t{lane} * own - lead;
        uint64_t above = sum >> 32, ties = static_cast<uint32_t>(sum);
        for (uint32_t left = over[lane] | equal[lane]; left; left &= left - 1) {
          const unsigned k = countr_zero(left);
          const bool is_above = over[lane] >> k & 1;
          if (is_above || ties < cut.ties)
            keep(v.common, v.unit, above + (ties < cut.ties ? ties : cut.ties), static_cast<uint32_t>(i + k),
                 stored<Bits>(v.common, v.unit, i + k));
          above += is_above;
          ties += !is_above;
        }
      });
      before += all;
    }
    return before;
  }

  template <class Block>
  DR_HD static void write(Block& b, const view& v, uint32_t begin, uint32_t end, bool last) {
    const exact_rank r = known(b, v, 3);
    typename Block::template each<uint64_t> sum;
    b.phase([&](unsigned lane) {
      sum[lane] = 0;
      for (uint32_t i = lane; i < b.index(); i += lanes) sum[lane] += v.counts()[i];
    });
    const uint64_t before = b.sum(sum);
    const uint64_t all = v.unit.residual
                             ? write_from(b, v, v.unit.residual, begin, end, r, before)
                             : write_from(b, v, static_cast<const Bits*>(v.unit.values), begin, end, r, before);
    if (!last) return;
    b.phase([&](unsigned lane) {
      if (lane == 0) tell_count(v.unit, kept_of(all, r.ties));
    });
  }
};

// ---- Adopt ------------------------------------------------------------------------------------------------

// A sparse tensor: indices that strictly ascend become a support. job.in: indices, job.tell: values, job.out: support, job.extra: entries;
// job.count: the row (as a pointer).
struct adopt_common {
  uint32_t index_dtype, dtype, needs_finite;
};

DR_HD inline uint64_t index_at(uint32_t index_dtype, const void* indices, uint64_t i) {
  if (index_dtype == DR_U32) return static_cast<const uint32_t*>(indices)[i];
  if (index_dtype == DR_I32) return static_cast<uint64_t>(int64_t{static_cast<const int32_t*>(indices)[i]});
  return static_cast<const uint64_t*>(indices)[i];  // a negative one is beyond every universe
}

inline constexpr uint32_t adopt_tile = 2048;

template <class Args>
struct select_adopt {
  static constexpr const char* name = "select_adopt";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    auto* const row = reinterpret_cast<device_row*>(job.tell_count);
    const uint64_t begin = uint64_t{b.index() - job.first_tile} * adopt_tile, n = job.extra, width = job.key;
    b.phase([&](unsigned lane) {
      for (uint32_t k = 0; k < adopt_tile / lanes; ++k) {
        const uint64_t i = begin + k * lanes + lane;
        if (i >= n) continue;
        const uint64_t x = index_at(a.common.index_dtype, job.in, i);
        if (x >= job.universe || (i && index_at(a.common.index_dtype, job.in, i - 1) >= x))
          raise(&row->fault, DR_E_ARGUMENT, DR_STREAM_NONE, i, x);
        else
          static_cast<uint32_t*>(job.out)[i] = static_cast<uint32_t>(x);
        if (a.common.needs_finite) judge(a.common.dtype, job.tell, i, width, row);
      }
      if (begin == 0 && lane == 0) row->count = row->told = n;
    });
  }

  DR_HD static void judge(uint32_t dtype, const void* values, uint64_t i, uint64_t width, device_row* row) {
    for (uint64_t at = i * width; at < (i + 1) * width; ++at) {
      const bool finite = dtype == DR_F32   ? is_finite<f32_type>(static_cast<const uint32_t*>(values)[at])
                          : dtype == DR_F16 ? is_finite<f16_type>(static_cast<const uint16_t*>(values)[at])
                                            : is_finite<bf16_type>(static_cast<const uint16_t*>(values)[at]);
      if (finite) continue;
      atomic_max(&row->not_finite, ~at);
      raise(&row->fault, DR_E_ARGUMENT, DR_STREAM_VALUE, 0, 0);
    }
  }
};

}  // namespace dr
