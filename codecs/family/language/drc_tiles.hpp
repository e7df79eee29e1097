// Of codecs that `deepreduce codec` made: the parts of their kernels, for lanes of a block. A payload's fields lie at any
// address, so they are read and written byte by byte.
#pragma once

#include "codecs/family/language/drc_runtime.hpp"
#include "primitive/lookback.hpp"
#include "primitive/sum_tree_tile.hpp"
#include "primitive/tile_job.hpp"

namespace dr::lang {

inline constexpr uint32_t survey_values = 4096;  // of a block that adds up: whole tiles of the sum tree
static_assert(survey_values % sum_tile == 0);

template <class N>
DR_HD inline void put(uint8_t* to, N x) {
  uint64_t bits = 0;
  if constexpr (std::is_same_v<N, float>)
    bits = std::bit_cast<uint32_t>(x);
  else
    bits = static_cast<uint64_t>(x);
  for (unsigned i = 0; i < sizeof(N); ++i) to[i] = static_cast<uint8_t>(bits >> 8 * i);
}
template <class N>
DR_HD inline N get(const uint8_t* from) {
  uint64_t bits = 0;
  for (unsigned i = 0; i < sizeof(N); ++i) bits |= uint64_t{from[i]} << 8 * i;
  if constexpr (std::is_same_v<N, float>)
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  else
    return static_cast<N>(bits);
}
// Number i of a string of numbers of so many bits.
DR_HD inline uint32_t number_of_bits(const uint8_t* in, uint64_t i, unsigned bits) {
  const uint64_t begin = i * bits;
  const uint8_t* const at = in + begin / 8;
  const auto shift = static_cast<unsigned>(begin % 8);
  uint64_t word = 0;
  for (unsigned k = 0; 8 * k < shift + bits; ++k) word |= uint64_t{at[k]} << 8 * k;
  return static_cast<uint32_t>(word >> shift & low_mask(bits));
}
// Byte `byte` of `count` numbers, one behind the other.
DR_HD inline uint8_t packed_byte(const uint32_t* codes, uint32_t count, unsigned bits, uint32_t byte) {
  uint32_t packed = 0;
  const uint32_t begin = 8 * byte;
  for (uint32_t c = begin / bits; c < count && c * bits < begin + 8; ++c)
    packed |= c * bits >= begin ? codes[c] << (c * bits - begin) : codes[c] >> (begin - c * bits);
  return static_cast<uint8_t>(packed);
}
template <uint32_t base>
DR_HD inline uint8_t digits_byte(const uint32_t* digits, uint32_t count, uint32_t byte, uint32_t pad) {
  constexpr uint32_t k = digits_a_byte<base>;
  uint32_t packed = 0;
  for (uint32_t i = 0; i < k; ++i) packed = packed * base + (byte * k + i < count ? digits[byte * k + i] : pad);
  return static_cast<uint8_t>(packed);
}

// Numbers as words in their order, 0 the least, for maxima by atomics.
DR_HD inline uint64_t order_word(int32_t x) {
  return static_cast<uint64_t>(static_cast<int64_t>(x)) ^ uint64_t { 1 } << 63;
}
DR_HD inline uint64_t order_word(int64_t x) {
  return static_cast<uint64_t>(x) ^ uint64_t { 1 } << 63;
}
DR_HD inline uint64_t order_word(uint32_t x) { return x | uint64_t{1} << 63; }
DR_HD inline uint64_t order_word(uint64_t x) { return x; }
template <class N>
DR_HD inline N of_order_word(uint64_t word) {
  return static_cast<N>(std::is_same_v<N, uint64_t> ? word : word ^ uint64_t{1} << 63);
}

// A job's memory: words of reductions, counters of blocks, sums of tiles, words of runs. Zero before the call.
struct room {
  uint64_t* words;
  uint32_t* done;
  double* sums;
  uint64_t* runs;

  DR_HD static constexpr uint64_t head(uint64_t words) { return 8 * words + 64; }
  DR_HD static room of(std::byte* from, uint64_t n, uint64_t words, uint64_t sums) {
    auto* const at = reinterpret_cast<uint64_t*>(from);
    auto* const first = at + words + 8;
    return {at, reinterpret_cast<uint32_t*>(at + words), reinterpret_cast<double*>(first),
            first + sums * ceil_div(n, sum_tile)};
  }
};

// One reduction of a run of values, by a block; `total` is in shared memory in the phases that follow.
template <class Block, class F>
DR_HD void run_sum(Block& b, double* part, double& total, const uint64_t& length, F&& term) {
  constexpr uint32_t group = tree_lanes(sum_tile), beside = Block::lanes / group;
  for (uint64_t first = 0; first < length; first += beside * sum_tile) {
    tree_sums(b, part, group, [&](uint32_t t, uint32_t i) {
      const uint64_t at = first + t * sum_tile + i;
      return t < beside && at < length ? term(at) : 0.0;
    });
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      double sum = first == 0 ? 0 : total;
      for (uint32_t t = 0; t < beside && first + t * sum_tile < length; ++t) sum += part[t * group];
      total = sum;
    });
  }
}

}  // namespace dr::lang
