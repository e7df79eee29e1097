#include "sparsify/rank.hpp"

#include <iterator>

namespace dr {
namespace {

// The rank-th largest of n <= max keys, 1 <= rank <= n: compares all pairs, so no branch depends on the keys.
template <size_t max>
ranked rank_of_few(const uint32_t* keys, size_t stride, size_t n, uint64_t rank) {
  int32_t few[max] = {};  // (zeros are above none, and keys are below 2^31)
  for (size_t i = 0; i < n; ++i) few[i] = static_cast<int32_t>(keys[i * stride]);
  ranked least{magnitudes_end, 0};
  for (size_t i = 0; i < n; ++i) {
    int32_t above = 0;
    for (size_t k = 0; k < max; ++k) above += few[k] > few[i];
    const auto key = static_cast<uint32_t>(few[i]);
    const bool lower = static_cast<uint64_t>(above) < rank && key < least.key;
    least.key = lower ? key : least.key;
    least.above = lower ? static_cast<uint64_t>(above) : least.above;
  }
  return least;
}

// The rank-th largest of n keys, all in [low, high), 1 <= rank <= n, by radix. scratch [n], perhaps the keys
// themselves.
ranked rank_by_radix(const select_kernels& k, const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low,
                     uint32_t high, uint32_t* scratch) {
  constexpr unsigned digit = 11;
  uint32_t bins[1u << digit];
  uint64_t above = 0;
  for (;;) {
    const unsigned width = bit_width(high - 1 - low), shift = width > digit ? width - digit : 0;
    std::fill(bins, std::end(bins), 0);
    for (uint64_t i = 0; i < n; ++i) ++bins[(keys[i] - low) >> shift];
    uint32_t b = (high - 1 - low) >> shift;
    for (; bins[b] < rank; --b) {
      rank -= bins[b];
      above += bins[b];
    }
    low += b << shift;
    if (shift == 0) return {low, above};
    high = low + std::min(high - low, 1u << shift);
    n = k.magnitudes(keys, n, low, high, scratch);
    keys = scratch;
  }
}

}  // namespace

// As rank_by_radix, but for up to a few thousand keys, where the radix counters would cost more than the keys:
// quickselect (Hoare 1961), with pivots from 16 of the keys, until few keys remain. Adversarial keys cost eight passes.
ranked find_rank(const select_kernels& k, const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low, uint32_t high,
                 uint32_t* scratch) {
  constexpr uint64_t many = 8192, few = 32, sampled = 16;
  constexpr int passes = 8;
  uint64_t above = 0;
  for (int pass = 0; n <= many && pass < passes; ++pass) {
    if (high - low == 1) return {low, above};
    if (rank == 1) {
      int32_t largest = 0;
      for (uint64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<int32_t>(keys[i]));
      return {static_cast<uint32_t>(largest), above};
    }
    if (n <= few) {
      const ranked r = n <= sampled ? rank_of_few<sampled>(keys, 1, n, rank) : rank_of_few<few>(keys, 1, n, rank);
      return {r.key, above + r.above};
    }
    // A little below the rank, so that the larger part is dropped at once.
    const uint64_t expected = rank * sampled / n;
    const uint32_t pivot = rank_of_few<sampled>(keys, n / sampled, sampled, std::min(sampled, expected + 2)).key;
    const uint64_t larger = k.count(keys, n, pivot + 1);
    if (larger >= rank) {
      low = pivot + 1;
    } else if (const uint64_t from = k.count(keys, n, pivot); from >= rank) {
      return {pivot, above + larger};
    } else {
      high = pivot;
      above += from;
      rank -= from;
    }
    n = k.magnitudes(keys, n, low, high, scratch);
    keys = scratch;
  }
  const ranked r = rank_by_radix(k, keys, n, rank, low, high, scratch);
  return {r.key, above + r.above};
}

}  // namespace dr
