// value=ulp on a GPU, encode. Five launches:
//
//   ulp_symbols  symbols of the words; the last block chooses the classes, from a sample
//   ulp_count    counts of the symbols by class; the last block makes the tables
//   ulp_chain    the states of the string, from its last symbol to its first: a lane each, so a block a job
//   ulp_pack     the string's words side by side, or the new words themselves
//   ulp_apart    the bits apart
#pragma once

#include "codecs/value/ulp/ulp_tile.hpp"
#include "primitive/lookback.hpp"
#include "primitive/tile_bits.hpp"

namespace dr {

template <class Args>
struct ulp_symbols {
  static constexpr const char* name = "ulp_symbols";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t share = ulp_tile / lanes, groups_max = 32;
  using args = Args;
  struct shared {
    uint32_t weight[256];
    uint32_t before[groups_max + 1][change_looked_at];
    uint64_t cost[groups_max + 1][groups_max + 1], best[classes_max + 1][groups_max + 1];
    uint8_t from[classes_max + 1][groups_max + 1];
    uint8_t group[256], begin[groups_max];
    uint32_t groups;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job), begin = uint64_t{ulp_tile_of(job, b.index())} * ulp_tile;
    if (begin >= n) return;
    const ulp_encode_room room = ulp_encode_room::of(a.common, job, ulp_words_max(job));
    const uint64_t stride = n < change_classes_from ? n : change_stride(n);
    with_ulp_words(a.common.dtype, [&](auto word) {
      using Word = decltype(word);
      using bits = typename Word::bits;
      const auto *const old = static_cast<const bits*>(job.tell), *const now = static_cast<const bits*>(job.in);
      typename Block::template each<uint64_t> extra;
      b.phase([&](unsigned lane) { s.weight[lane] = 0; });
      b.phase([&](unsigned lane) {
        extra[lane] = 0;
        for (uint32_t k = 0; k < share; ++k) {
          const uint64_t i = begin + k * lanes + lane;
          if (i >= n) continue;
          const uint8_t symbol = change_symbols<8 * sizeof(bits)>::of(ulp_change<Word>::of(old[i], now[i]));
          room.codes[i] = symbol;
          extra[lane] += change_symbols<8 * sizeof(bits)>::extra(symbol);
          if (i % stride == 0) atomic_add(&s.weight[word_key(old[i])], 1u);
        }
      });
      const uint64_t all = b.sum(extra);
      b.phase([&](unsigned lane) {
        if (s.weight[lane]) atomic_add(&room.state.weight[lane], s.weight[lane]);
        if (lane == 0 && all) atomic_add(&room.state.extra, all);
      });
      const auto tiles = static_cast<uint32_t>(ulp_encode_state::tiles(n));
      if (last_of(b, &room.state.done_symbols, tiles) && n >= change_classes_from) choose(b, s, room, old, n, stride);
    });
  }

  // As change_classes and choose_classes do.
  template <class Block, class Bits>
  DR_HD static void choose(Block& b, shared& s, const ulp_encode_room& room, const Bits* old, uint64_t n,
                           uint64_t stride) {
    b.phase([&](unsigned lane) {
      s.weight[lane] = room.state.weight[lane];
      for (uint32_t i = lane; i < (groups_max + 1) * change_looked_at; i += lanes)
        s.before[i / change_looked_at][i % change_looked_at] = 0;
    });
    b.phase([&](unsigned lane) {
      if (lane == 0) s.groups = group_keys(s.weight, change_groups_max(n), s.begin, s.group);
    });
    b.phase([&](unsigned lane) {
      for (uint64_t i = lane * stride; i < n; i += lanes * stride) {
        const uint32_t symbol = room.codes[i];
        atomic_add(&s.before[s.group[word_key(old[i])] + 1][symbol < change_looked_at ? symbol : change_looked_at - 1],
                   1u);
      }
    });
    const uint32_t groups = b.get(s.groups);
    b.phase([&](unsigned lane) {
      if (lane >= change_looked_at) return;
      for (uint32_t g = 0; g < groups; ++g) s.before[g + 1][lane] += s.before[g][lane];
    });
    b.phase([&](unsigned lane) {
      for (uint32_t at = lane; at < (groups + 1) * (groups + 1); at += lanes) {
        const uint32_t i = at / (groups + 1), j = at % (groups + 1);
        if (i < j) s.cost[i][j] = cost(s, i, j) + change_class_cost(stride);
      }
      if (lane <= classes_max)
        for (uint32_t j = 0; j <= groups; ++j) s.best[lane][j] = lane + j ? ~uint64_t{0} : 0;
    });
    for (uint32_t j = 1; j <= groups; ++j)
      b.phase([&](unsigned lane) {
        if (lane < 1 || lane > classes_max) return;
        for (uint32_t i = 0; i < j; ++i) {
          const uint64_t before = s.best[lane - 1][i];
          if (before == ~uint64_t{0} || before + s.cost[i][j] >= s.best[lane][j]) continue;
          s.best[lane][j] = before + s.cost[i][j];
          s.from[lane][j] = static_cast<uint8_t>(i);
        }
      });
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      uint32_t count = 1;
      for (uint32_t k = 1; k <= classes_max; ++k)
        if (s.best[k][groups] < s.best[count][groups]) count = k;
      room.state.thresholds = count - 1;
      uint32_t end = groups;
      for (uint32_t k = count; k > 1; --k) {
        end = s.from[k][end];
        room.state.threshold[k - 2] = s.begin[end];
      }
    });
  }

  DR_HD static uint64_t cost(const shared& s, uint32_t i, uint32_t j) {
    uint64_t all = 0, parts = 0;
    for (unsigned k = 0; k < change_looked_at; ++k) {
      const uint64_t count = s.before[j][k] - s.before[i][k];
      all += count;
      parts += x_log2_q16(count);
    }
    all = x_log2_q16(all);
    return all > parts ? all - parts : 0;
  }
};

template <class Args>
struct ulp_count {
  static constexpr const char* name = "ulp_count";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t share = ulp_tile / lanes, cells = classes_max * ulp_symbols_max;
  using args = Args;
  struct shared {
    uint32_t counts[classes_max][ulp_symbols_max];
    uint16_t frequency[classes_max][ulp_symbols_max];
    uint32_t symbols[classes_max];
    uint8_t of_key[256];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job), begin = uint64_t{ulp_tile_of(job, b.index())} * ulp_tile;
    if (begin >= n) return;
    const ulp_encode_room room = ulp_encode_room::of(a.common, job, ulp_words_max(job));
    ulp_encode_state& state = room.state;
    b.phase([&](unsigned lane) {
      s.of_key[lane] = static_cast<uint8_t>(ulp_class_of(state.threshold, state.thresholds, lane));
      for (uint32_t i = lane; i < cells; i += lanes) s.counts[i / ulp_symbols_max][i % ulp_symbols_max] = 0;
    });
    with_ulp_words(a.common.dtype, [&](auto word) {
      using bits = typename decltype(word)::bits;
      const auto* const old = static_cast<const bits*>(job.tell);
      b.phase([&](unsigned lane) {
        for (uint32_t k = 0; k < share; ++k) {
          const uint64_t i = begin + k * lanes + lane;
          if (i >= n) continue;
          const uint32_t symbol = room.codes[i], of = s.of_key[word_key(old[i])];
          room.codes[i] = symbol | of << ulp_class_shift;
          atomic_add(&s.counts[of][symbol], 1u);
        }
      });
    });
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < cells; i += lanes)
        if (const uint32_t count = s.counts[i / ulp_symbols_max][i % ulp_symbols_max])
          atomic_add(&state.counts[i / ulp_symbols_max][i % ulp_symbols_max], count);
    });
    if (last_of(b, &state.done_counts, static_cast<uint32_t>(ulp_encode_state::tiles(n)))) make_tables(b, s, state);
  }

  template <class Block>
  DR_HD static void make_tables(Block& b, shared& s, ulp_encode_state& state) {
    b.phase([&](unsigned lane) {
      if (lane > state.thresholds) return;
      uint32_t* const counts = state.counts[lane];
      bool empty = true;
      for (uint32_t k = 0; k < ulp_symbols_max; ++k) empty = empty && counts[k] == 0;
      if (empty) counts[0] = 1;  // (a class of a threshold above which nothing changed has a table, too)
      uint16_t* const frequency = s.frequency[lane];
      s.symbols[lane] = rans_fit(counts, ulp_symbols_max, frequency);
      uint32_t start = 0;
      for (uint32_t k = 0; k < s.symbols[lane]; ++k) {
        const uint32_t f = frequency[k];
        if (!f) continue;
        state.range[lane][k] = start << 16 | f;
        state.reciprocal[lane][k] = rans_reciprocal(f);
        start += f;
      }
    });
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      uint8_t* at = state.head;
      *at++ = static_cast<uint8_t>(state.thresholds + 1);
      for (uint32_t k = 0; k < state.thresholds; ++k) *at++ = state.threshold[k];
      for (uint32_t c = 0; c <= state.thresholds; ++c) at = rans_put_frequencies(s.frequency[c], s.symbols[c], at);
      state.head_size = static_cast<uint32_t>(at - state.head);
    });
  }
};

template <class Args>
struct ulp_chain {
  static constexpr const char* name = "ulp_chain";
  static constexpr unsigned lanes = ulp_chain_lanes, grid_phases = 1;
  static constexpr uint32_t ahead = 8;  // codes that a lane loads together
  using args = Args;
  struct shared {
    uint64_t reciprocal[classes_max][ulp_symbols_max];
    uint32_t range[classes_max][ulp_symbols_max];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job);
    if (n == 0) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
      });
      return;
    }
    const ulp_encode_room room = ulp_encode_room::of(a.common, job, ulp_words_max(job));
    ulp_encode_state& state = room.state;
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < classes_max * ulp_symbols_max; i += lanes) {
        const uint32_t c = i / ulp_symbols_max, k = i % ulp_symbols_max;
        s.range[c][k] = state.range[c][k];
        s.reciprocal[c][k] = state.reciprocal[c][k];
      }
    });
    const uint32_t states = rans_lanes(n);
    typename Block::template each<uint64_t> words;
    b.phase([&](unsigned lane) { words[lane] = lane < states ? follow(s, room, n, states, lane) : 0; });
    const uint64_t all = b.sum(words);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const uint64_t coded = 4 * uint64_t{states} + 2 * all;
      uint64_t head = state.head_size;
      if (state.extra) head = static_cast<uint64_t>(put_varint(state.head + head, coded) - state.head);
      const uint64_t size = head + coded + ceil_div(state.extra, 8), bound = 1 + n * value_size(a.common.dtype);
      state.head_size = static_cast<uint32_t>(head);
      state.words = all;
      state.raw = size >= bound;
      *job.out_size = state.raw ? bound : size;
    });
  }

  // The symbols of a state, from the last; returns the words that they write.
  DR_HD static uint64_t follow(const shared& s, const ulp_encode_room& room, uint64_t n, uint32_t states,
                               uint32_t lane) {
    uint64_t words = 0, left = lane < n ? (n - lane + states - 1) / states : 0;  // symbols
    uint32_t x = rans_low, code[ahead] = {};
    while (left) {
      const uint32_t some = left < ahead ? static_cast<uint32_t>(left) : ahead;
#pragma unroll
      for (uint32_t k = 0; k < ahead; ++k)
        if (k < some) code[k] = room.codes[(left - 1 - k) * states + lane];
#pragma unroll
      for (uint32_t k = 0; k < ahead; ++k) {
        if (k >= some) continue;
        const uint32_t c = code[k] >> ulp_class_shift, symbol = code[k] % ulp_symbols_max;
        const uint32_t range = s.range[c][symbol], f = range & 0xffff;
        const bool full = x >> 20 >= f;
        code[k] = full ? ulp_word_flag | (x & 0xffff) : 0;
        words += full;
        if (full) x >>= 16;
        const auto quotient = static_cast<uint32_t>(x * s.reciprocal[c][symbol] >> 44);
        x += quotient * (rans_total - f) + (range >> 16);
      }
#pragma unroll
      for (uint32_t k = 0; k < ahead; ++k)
        if (k < some) room.codes[(left - 1 - k) * states + lane] = code[k];
      left -= some;
    }
    room.state.state[lane] = x;
    return words;
  }
};

template <class Args>
struct ulp_pack {
  static constexpr const char* name = "ulp_pack";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t share = ulp_tile / lanes;
  using args = Args;
  struct shared {
    alignas(16) uint32_t words[ulp_tile + 1];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job), tiles = ulp_encode_state::tiles(n);
    if (ulp_tile_of(job, b.index()) >= tiles) return;
    const ulp_encode_room room = ulp_encode_room::of(a.common, job, ulp_words_max(job));
    auto* const out = static_cast<uint8_t*>(job.out);
    const bool raw = room.state.raw != 0;
    const uint32_t tile = take_tile(b, &room.state.ticket_words);
    const uint64_t begin = uint64_t{tile} * ulp_tile;
    const uint32_t count = n - begin < ulp_tile ? static_cast<uint32_t>(n - begin) : ulp_tile;
    if (raw) return copy(b, s, a, job, out, begin, count);
    typename Block::template each<uint32_t> places;
    b.phase([&](unsigned lane) {
      places[lane] = 0;
      for (uint32_t k = 0; k < share; ++k) {
        const uint32_t i = lane * share + k;
        if (i < count) places[lane] += room.codes[begin + i] >> 16;
      }
    });
    const uint32_t own = b.exclusive_sum(places);
    const uint64_t before = lookback(b, room.words, tile, own);
    const uint32_t states = rans_lanes(n);
    b.phase([&](unsigned lane) {
      uint32_t to = places[lane];
      for (uint32_t k = 0; k < share; ++k) {
        const uint32_t i = lane * share + k, code = i < count ? room.codes[begin + i] : 0;
        if (code & ulp_word_flag) reinterpret_cast<uint16_t*>(s.words)[to++] = static_cast<uint16_t>(code);
      }
    });
    b.phase([&](unsigned lane) {
      const ulp_encode_state& state = room.state;
      const uint64_t string = state.head_size, words = string + 4 * states, apart = words + 2 * state.words;
      put_bytes(s.words, 2 * own, out + words + 2 * before, lane, lanes);
      // The bits apart are set later, in zeros.
      const uint64_t zeros = ceil_div(state.extra, 8), part = ceil_div(zeros, tiles);
      for (uint64_t i = tile * part + lane; i < (tile + 1) * part && i < zeros; i += lanes) out[apart + i] = 0;
      if (tile != 0) return;
      for (uint64_t i = lane; i < string; i += lanes) out[i] = state.head[i];
      for (uint32_t i = lane; i < 4 * states; i += lanes)
        out[string + i] = static_cast<uint8_t>(state.state[i / 4] >> 8 * (i % 4));
    });
  }

  // The new words themselves.
  template <class Block>
  DR_HD static void copy(Block& b, shared& s, const args& a, const tile_job& job, uint8_t* out, uint64_t begin,
                         uint32_t count) {
    const uint32_t size = value_size(a.common.dtype);
    b.phase([&](unsigned lane) {
      for (uint32_t i = lane; i < count; i += lanes) {
        if (size == 4)
          s.words[i] = static_cast<const uint32_t*>(job.in)[begin + i];
        else
          reinterpret_cast<uint16_t*>(s.words)[i] = static_cast<const uint16_t*>(job.in)[begin + i];
      }
    });
    b.phase([&](unsigned lane) {
      if (begin == 0 && lane == 0) out[0] = change_raw;
      put_bytes(s.words, count * size, out + 1 + begin * size, lane, lanes);
    });
  }
};

template <class Args>
struct ulp_apart {
  static constexpr const char* name = "ulp_apart";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t share = ulp_tile / lanes;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job);
    if (ulp_tile_of(job, b.index()) >= ulp_encode_state::tiles(n)) return;
    const ulp_encode_room room = ulp_encode_room::of(a.common, job, ulp_words_max(job));
    ulp_encode_state& state = room.state;
    if (state.raw || state.extra == 0) return;
    const uint32_t tile = take_tile(b, &state.ticket_bits);
    const uint64_t begin = uint64_t{tile} * ulp_tile;
    with_ulp_words(a.common.dtype, [&](auto word) {
      using Word = decltype(word);
      using bits = typename Word::bits;
      using symbols = change_symbols<8 * sizeof(bits)>;
      const auto *const old = static_cast<const bits*>(job.tell), *const now = static_cast<const bits*>(job.in);
      const auto each_wide = [&](unsigned lane, auto&& f) {
        for (uint32_t k = 0; k < share; ++k) {
          const uint64_t i = begin + lane * share + k;
          if (i >= n) continue;
          const uint64_t z = ulp_change<Word>::of(old[i], now[i]);
          if (const unsigned width = symbols::extra(symbols::of(z))) f(z & low_mask(width), width);
        }
      };
      typename Block::template each<uint64_t> places;
      b.phase([&](unsigned lane) {
        places[lane] = 0;
        each_wide(lane, [&](uint64_t, unsigned width) { places[lane] += width; });
      });
      const uint64_t own = b.exclusive_sum(places), before = lookback(b, room.bits, tile, own);
      const uint64_t apart = 8 * (state.head_size + 4 * uint64_t{rans_lanes(n)} + 2 * state.words) + before;
      b.phase([&](unsigned lane) {
        auto* const out = static_cast<uint32_t*>(job.out);
        uint64_t at = apart + places[lane];
        each_wide(lane, [&](uint64_t rest, unsigned width) {
          const uint64_t both = rest << at % 32;  // at most 31 bits, twice
          atomic_or(out + at / 32, static_cast<uint32_t>(both));
          if (both >> 32) atomic_or(out + at / 32 + 1, static_cast<uint32_t>(both >> 32));
          at += width;
        });
      });
    });
  }
};

}  // namespace dr
