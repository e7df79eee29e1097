// value=ulp on a GPU, decode. Two launches:
//
//   ulp_open    reads classes and tables, and decodes the string: a lane for each of its states, so a block a job
//   ulp_values  new words from symbols, bits apart and old words
#pragma once

#include "codecs/value/ulp/ulp_tile.hpp"
#include "primitive/lookback.hpp"

namespace dr {

template <class Args>
struct ulp_open {
  static constexpr const char* name = "ulp_open";
  static constexpr unsigned lanes = ulp_chain_lanes, grid_phases = 1;
  static constexpr uint32_t staged = rans_lanes_max * ulp_steps;
  using args = Args;
  struct shared {
    uint8_t symbol[classes_max][rans_total];  // of the low bits of a state
    uint16_t start[classes_max][ulp_symbols_max], frequency[classes_max][ulp_symbols_max];
    uint32_t symbols[classes_max];
    uint8_t of_key[256], threshold[classes_max];
    uint8_t of[staged];     // classes of the words whose symbols come next,
    uint16_t word[staged];  // and words of the string
    // The payload, as lane 0 reads it.
    uint64_t string, string_size;
    uint32_t thresholds, sound, raw, apart;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job), size = *job.in_size;
    if (n == 0) return;
    const ulp_decode_room room = ulp_decode_room::of(a.common, job, ulp_words_max(job));
    const auto* const in = static_cast<const uint8_t*>(job.in);
    b.phase([&](unsigned lane) {
      if (lane == 0) parse(s, a.common, in, size, n);
    });
    const bool sound = b.get(s.sound) != 0, raw = b.get(s.raw) != 0;
    if (!sound || raw) {
      b.phase([&](unsigned lane) {
        if (lane != 0) return;
        if (!sound) raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, n);
        room.state.raw = raw;
      });
      return;
    }
    set_lookups(b, s);
    const bool fits = decode(b, s, a.common, job, room, in, n);
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const uint64_t end = s.string + s.string_size;
      if (!fits || (!s.apart && end != size)) raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, n);
      room.state.apart = s.apart;
      room.state.apart_at = end;
    });
  }

  // One lane. Sets s.sound if the payload is one, as far as its string.
  DR_HD static void parse(shared& s, const ulp_common& c, const uint8_t* in, uint64_t size, uint64_t n) {
    s.sound = s.raw = s.apart = s.thresholds = 0;
    s.string = s.string_size = 0;
    const uint8_t *at = in, *const end = in + size;
    if (size == 0) return;
    if (*at == change_raw) {
      s.raw = 1;
      s.sound = size == 1 + n * value_size(c.dtype);
      return;
    }
    const uint32_t classes = *at++;
    if (classes > classes_max || static_cast<uint64_t>(end - at) < classes - 1) return;
    s.thresholds = classes - 1;
    for (uint32_t k = 0; k < s.thresholds; ++k) {
      s.threshold[k] = *at++;
      if (s.threshold[k] == 0 || (k && s.threshold[k] <= s.threshold[k - 1])) return;
    }
    const uint32_t most = c.dtype == DR_F32 ? change_symbols<32>::symbol_count : change_symbols<16>::symbol_count;
    for (uint32_t k = 0; k < classes; ++k) {
      at = rans_get_frequencies(at, end, most, s.frequency[k], s.symbols[k]);
      if (!at) return;
      if (s.symbols[k] > change_small) s.apart = 1;
    }
    uint64_t coded = static_cast<uint64_t>(end - at);
    if (s.apart) {
      at = get_varint(at, end, coded);
      if (!at || coded > static_cast<uint64_t>(end - at)) return;
    }
    s.string = static_cast<uint64_t>(at - in);
    s.string_size = coded;
    s.sound = coded >= 4 * uint64_t{rans_lanes(n)};
  }

  template <class Block>
  DR_HD static void set_lookups(Block& b, shared& s) {
    b.phase([&](unsigned lane) {
      for (uint32_t key = lane; key < 256; key += lanes)
        s.of_key[key] = static_cast<uint8_t>(ulp_class_of(s.threshold, s.thresholds, key));
      if (lane > s.thresholds) return;
      uint32_t start = 0;
      for (uint32_t k = 0; k < s.symbols[lane]; ++k) {
        s.start[lane][k] = static_cast<uint16_t>(start);
        start += s.frequency[lane][k];
      }
    });
    b.phase([&](unsigned lane) {
      for (uint32_t c = 0; c <= s.thresholds; ++c)
        for (uint32_t k = 0; k < s.symbols[c]; ++k)
          for (uint32_t i = lane; i < s.frequency[c][k]; i += lanes)
            s.symbol[c][s.start[c][k] + i] = static_cast<uint8_t>(k);
    });
  }

  // Decodes the string; whether it is one.
  template <class Block>
  DR_HD static bool decode(Block& b, shared& s, const ulp_common& c, const tile_job& job, const ulp_decode_room& room,
                           const uint8_t* in, uint64_t n) {
    const uint32_t states = rans_lanes(n);
    const uint8_t* const string = in + b.get(s.string);
    const uint64_t size = b.get(s.string_size);
    typename Block::template each<uint32_t> x, next, takes, rank;
    b.phase([&](unsigned lane) {
      x[lane] = rans_low;
      if (lane >= states) return;
      x[lane] = 0;
      for (uint32_t k = 0; k < 4; ++k) x[lane] |= uint32_t{string[4 * lane + k]} << 8 * k;
    });
    uint64_t at = 4 * uint64_t{states};
    typename Block::template each<uint32_t> low;
    b.phase([&](unsigned lane) { low[lane] = x[lane] < rans_low; });
    const bool starts = b.sum(low) == 0;
    for (uint64_t begin = 0; starts && begin < n; begin += uint64_t{states} * ulp_steps) {
      b.phase([&](unsigned lane) {
        with_ulp_words(c.dtype, [&](auto word) {
          using bits = typename decltype(word)::bits;
          for (uint32_t k = lane; k < states * ulp_steps; k += lanes) {
            if (begin + k < n) s.of[k] = s.of_key[word_key(static_cast<const bits*>(job.tell)[begin + k])];
            // (Zeros past the end: a string that needs them is too short, which its length says then.)
            const uint64_t from = at + 2 * uint64_t{k};
            s.word[k] = from + 2 <= size ? static_cast<uint16_t>(string[from] | string[from + 1] << 8) : 0;
          }
        });
      });
      uint32_t used = 0;
      for (uint32_t g = 0; g < ulp_steps && begin + uint64_t{g} * states < n; ++g) {
        const uint64_t first = begin + uint64_t{g} * states;
        b.phase([&](unsigned lane) {
          takes[lane] = rank[lane] = 0;
          if (lane >= states || first + lane >= n) return;
          const uint32_t of = s.of[g * states + lane], low_bits = x[lane] % rans_total, k = s.symbol[of][low_bits];
          next[lane] = s.frequency[of][k] * (x[lane] >> rans_bits) + low_bits - s.start[of][k];
          takes[lane] = rank[lane] = next[lane] < rans_low;
          room.symbols[first + lane] = static_cast<uint8_t>(k);
        });
        const uint32_t all = b.exclusive_sum(rank);
        b.phase([&](unsigned lane) {
          if (lane >= states || first + lane >= n) return;
          x[lane] = takes[lane] ? next[lane] << 16 | s.word[used + rank[lane]] : next[lane];
        });
        used += all;
      }
      at += 2 * uint64_t{used};
    }
    b.phase([&](unsigned lane) { low[lane] = x[lane] != rans_low; });
    return b.sum(low) == 0 && starts && at == size;
  }
};

template <class Args>
struct ulp_values {
  static constexpr const char* name = "ulp_values";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  static constexpr uint32_t share = ulp_tile / lanes;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = ulp_words(job), tiles = ulp_encode_state::tiles(n);
    if (n == 0 && ulp_tile_of(job, b.index()) == 0) {
      b.phase([&](unsigned lane) {
        if (lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
      });
      return;
    }
    if (ulp_tile_of(job, b.index()) >= tiles) return;
    const ulp_decode_room room = ulp_decode_room::of(a.common, job, ulp_words_max(job));
    const uint32_t tile = take_tile(b, &room.state.ticket);
    const uint64_t begin = uint64_t{tile} * ulp_tile;
    const auto* const in = static_cast<const uint8_t*>(job.in);
    with_ulp_words(a.common.dtype, [&](auto word) {
      using Word = decltype(word);
      using bits = typename Word::bits;
      using symbols = change_symbols<8 * sizeof(bits)>;
      const auto* const old = static_cast<const bits*>(job.tell);
      auto* const out = static_cast<bits*>(job.out);
      if (room.state.raw || !room.state.apart) {
        b.phase([&](unsigned lane) {
          for (uint32_t k = 0; k < share; ++k) {
            const uint64_t i = begin + k * lanes + lane;
            if (i >= n) continue;
            bits value = 0;
            if (!room.state.raw) value = ulp_change<Word>::apply(old[i], room.symbols[i]);
            for (uint32_t byte = 0; room.state.raw && byte < sizeof(bits); ++byte)
              value = static_cast<bits>(value | bits{in[1 + i * sizeof(bits) + byte]} << 8 * byte);
            out[i] = value;
          }
          if (lane == 0 && tile + 1 == tiles) *job.out_size = n * sizeof(bits);
        });
        return;
      }
      typename Block::template each<uint64_t> places;
      const auto each_of = [&](unsigned lane, auto&& f) {
        for (uint32_t k = 0; k < share; ++k)
          if (const uint64_t i = begin + lane * share + k; i < n) f(i, symbols::extra(room.symbols[i]));
      };
      b.phase([&](unsigned lane) {
        places[lane] = 0;
        each_of(lane, [&](uint64_t, unsigned width) { places[lane] += width; });
      });
      const uint64_t own = b.exclusive_sum(places), before = lookback(b, room.bits, tile, own);
      const uint64_t from = room.state.apart_at, room_bits = 8 * (*job.in_size - from);
      b.phase([&](unsigned lane) {
        uint64_t at = before + places[lane];
        each_of(lane, [&](uint64_t i, unsigned width) {
          uint64_t z = room.symbols[i];
          if (width) z = uint64_t{1} << width | (at + width <= room_bits ? bits_from(in + from, at, width) : 0);
          out[i] = ulp_change<Word>::apply(old[i], z);
          at += width;
        });
        if (lane != 0 || tile + 1 != tiles) return;
        const uint64_t all = before + own;
        if (ceil_div(all, 8) == room_bits / 8 && padding_is_zero(in + from, all))
          *job.out_size = n * sizeof(bits);
        else
          raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, 0, n);
      });
    });
  }

  // `width` bits, at most 31, from bit `at` on of bytes that have them.
  DR_HD static uint64_t bits_from(const uint8_t* in, uint64_t at, unsigned width) {
    uint64_t x = 0;
    for (uint64_t byte = at / 8; byte <= (at + width - 1) / 8; ++byte) x |= uint64_t{in[byte]} << 8 * (byte - at / 8);
    return x >> at % 8 & low_mask(width);
  }
};

}  // namespace dr
