// order=bitpack on a GPU: a lane writes words of the bit string, or reads numbers from it.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr uint64_t bitpack_tile = 2048;  // encode: words, decode: numbers

struct bitpack_common {};

template <class Args>
struct bitpack_encode {
  static constexpr const char* name = "bitpack_encode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job), begin = (b.index() - job.first_tile) * bitpack_tile;
    const unsigned bits = ceil_log2(n);
    const uint64_t words = (n * bits + 31) / 32;
    b.phase([&](unsigned lane) {
      for (uint64_t k = 0; k < bitpack_tile / lanes; ++k)
        if (const uint64_t w = begin + k * lanes + lane; w < words)
          static_cast<uint32_t*>(job.out)[w] = word(static_cast<const uint32_t*>(job.in), n, bits, w);
      if (begin == 0 && lane == 0 && job.fault->code == DR_OK) *job.out_size = (n * bits + 7) / 8;
    });
  }

 private:
  // Word w of the bit string: at most 32 / bits + 2 numbers have a part in it.
  DR_HD static uint32_t word(const uint32_t* order, uint64_t n, unsigned bits, uint64_t w) {
    uint64_t i = 32 * w / bits;
    const auto skip = static_cast<unsigned>(32 * w - i * bits);  // bits of the first that went before
    uint32_t word = order[i++] >> skip;
    for (unsigned at = bits - skip; at < 32 && i < n; at += bits) word |= order[i++] << at;
    return word;
  }
};

template <class Args>
struct bitpack_decode {
  static constexpr const char* name = "bitpack_decode";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint64_t n = live_count(job), begin = (b.index() - job.first_tile) * bitpack_tile;
    const unsigned bits = ceil_log2(n);
    // A tile begins at a word: 2048 numbers have whole words.
    const uint32_t* const in = static_cast<const uint32_t*>(job.in) + begin / 32 * bits;
    b.phase([&](unsigned lane) {
      for (uint32_t k = 0; k < bitpack_tile / lanes; ++k)
        if (const uint32_t i = k * lanes + lane; begin + i < n)
          static_cast<uint32_t*>(job.out)[begin + i] = bits_at(in, i * bits, bits);
      if (begin != 0 || lane != 0 || job.fault->code != DR_OK) return;
      if (padding_is_zero(static_cast<const uint8_t*>(job.in), n * bits))
        *job.out_size = 4 * n;
      else
        raise(job.fault, DR_E_CORRUPT, DR_STREAM_ORDER, (n * bits + 7) / 8, 0);
    });
  }
};

}  // namespace dr
