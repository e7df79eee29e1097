// value=ulp on a GPU: what its kernels share. SPEC.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/family/classes/word_changes.hpp"
#include "primitive/bits.hpp"
#include "primitive/block.hpp"
#include "primitive/tile_job.hpp"
#include "primitive/value_type.hpp"
#include "primitive/word.hpp"

namespace dr {

inline constexpr uint32_t ulp_tile = 2048;       // words a block
inline constexpr unsigned ulp_symbols_max = 64;  // of a class, at least those of 32 bits
inline constexpr unsigned ulp_chain_lanes = 32;  // of the one block that follows the states of a string
inline constexpr uint32_t ulp_steps = 32;        // groups of symbols that a decoder stages together
static_assert(change_symbols<32>::symbol_count <= ulp_symbols_max && rans_lanes_max <= ulp_chain_lanes);

// job.tell: the old words; job.extra: the place of a job's scratch, in units of 64 bytes.
struct ulp_common {
  std::byte* scratch;
  uint32_t dtype;
};

// Calls f with the type of the words: that of a base, of which a device has numbers of 16 and 32 bits.
template <class F>
DR_HD void with_ulp_words(uint32_t dtype, F&& f) {
  if (dtype == DR_F32)
    f(word_type<uint32_t, true>{});
  else
    f(word_type<uint16_t, true>{});
}

// A code while a string is made: first symbol + class · 64; then the word that the symbol writes, if it writes one.
inline constexpr uint32_t ulp_class_shift = 6, ulp_word_flag = 1u << 16;

// What the kernels of an encode tell one another. Zero when a call begins.
struct ulp_encode_state {
  uint64_t extra;  // bits apart
  uint64_t words;  // of the string, behind its states
  uint32_t done_symbols, done_counts, ticket_words, ticket_bits;
  uint32_t head_size, raw;
  uint32_t thresholds;  // of classes
  uint8_t threshold[classes_max];
  uint32_t weight[256];  // of keys, in the sample
  uint32_t counts[classes_max][ulp_symbols_max];
  uint32_t range[classes_max][ulp_symbols_max];  // as in rans_code
  uint64_t reciprocal[classes_max][ulp_symbols_max];
  uint32_t state[rans_lanes_max];
  uint8_t head[1024];

  DR_HD static constexpr uint64_t tiles(uint64_t n) { return (n + ulp_tile - 1) / ulp_tile; }
  // Behind it: codes, and two look-backs.
  static constexpr uint64_t size(uint64_t n);
};
static_assert(sizeof(ulp_encode_state::head) >=
              2 + classes_max * (1 + rans_table::size_max(change_symbols<32>::symbol_count)) + 16);

DR_HD constexpr uint64_t ulp_round(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
inline constexpr uint64_t ulp_codes_at = ulp_round(sizeof(ulp_encode_state));
constexpr uint64_t ulp_encode_state::size(uint64_t n) {
  return ulp_codes_at + ulp_round(4 * n) + ulp_round(16 * (tiles(n) + 1));
}

// A job's scratch. n_max: its bound of words.
struct ulp_encode_room {
  ulp_encode_state& state;
  uint32_t* codes;
  uint64_t *words, *bits;  // look-backs

  DR_HD static ulp_encode_room of(const ulp_common& c, const tile_job& job, uint64_t n_max) {
    std::byte* const at = c.scratch + uint64_t{64} * job.extra;
    auto* const back = reinterpret_cast<uint64_t*>(at + ulp_codes_at + ulp_round(4 * n_max));
    return {*reinterpret_cast<ulp_encode_state*>(at), reinterpret_cast<uint32_t*>(at + ulp_codes_at), back,
            back + ulp_encode_state::tiles(n_max) + 1};
  }
};

// What the kernels of a decode tell one another. Zero when a call begins. Behind it: symbols, and a look-back.
struct ulp_decode_state {
  uint32_t raw, apart;  // apart: bits may follow the string,
  uint64_t apart_at;    // from this byte of the payload on
  uint32_t ticket;

  static constexpr uint64_t size(uint64_t n) {
    return ulp_round(sizeof(ulp_decode_state)) + ulp_round(n) + ulp_round(8 * ulp_encode_state::tiles(n));
  }
};
struct ulp_decode_room {
  ulp_decode_state& state;
  uint8_t* symbols;
  uint64_t* bits;

  DR_HD static ulp_decode_room of(const ulp_common& c, const tile_job& job, uint64_t n_max) {
    std::byte* const at = c.scratch + uint64_t{64} * job.extra;
    auto* const symbols = reinterpret_cast<uint8_t*>(at + ulp_round(sizeof(ulp_decode_state)));
    return {*reinterpret_cast<ulp_decode_state*>(at), symbols, reinterpret_cast<uint64_t*>(symbols + ulp_round(n_max))};
  }
};

// Words of a job, and their bound.
DR_HD inline uint64_t ulp_words(const tile_job& job) { return live_count(job) * job.width; }
DR_HD inline uint64_t ulp_words_max(const tile_job& job) { return uint64_t{job.count_max} * job.width; }
DR_HD inline uint32_t ulp_tile_of(const tile_job& job, uint32_t block) { return block - job.first_tile; }
// The classes of keys by their thresholds.
DR_HD inline uint32_t ulp_class_of(const uint8_t* threshold, uint32_t thresholds, uint32_t key) {
  uint32_t c = 0;
  for (uint32_t k = 0; k < thresholds; ++k) c += key >= threshold[k];
  return c;
}

}  // namespace dr
