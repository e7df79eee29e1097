// Quantile buckets with equally many values, separate by sign: every value becomes its bucket's mean (SketchML, Jiang et
// al. 2018; rules and layout: SPEC.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t sketch_buckets_max = 256;

template <class T>
inline constexpr uint32_t sketch_first_positive = T::magnitude_mask + 1u;  // the key of +0

// Ascending as the values are, -0 before +0.
template <class T>
constexpr uint32_t sketch_key(typename T::bits b) {
  return b & sketch_first_positive<T> ? static_cast<typename T::bits>(~b) : b | sketch_first_positive<T>;
}
template <class T>
double sketch_magnitude(uint32_t key) {
  const auto b = static_cast<typename T::bits>(key & sketch_first_positive<T> ? key : ~key);
  return T::to_f32(b & T::magnitude_mask);
}

// Sorts n keys below 2^bits by radix, of 11 bits where their many counters pay. Returns where they are: in `keys` or in
// `other`.
inline uint32_t* sketch_sort(uint32_t* keys, uint32_t* other, uint64_t n, unsigned bits) {
  const unsigned digit = bits > 16 && n > 4096 ? 11 : 8;
  for (unsigned shift = 0; shift < bits; shift += digit) {
    uint64_t at[2048] = {};
    const uint32_t mask = (1u << digit) - 1;
    for (uint64_t i = 0; i < n; ++i) ++at[keys[i] >> shift & mask];
    uint64_t sum = 0;
    for (uint64_t& a : at) sum += std::exchange(a, sum);
    for (uint64_t i = 0; i < n; ++i) other[at[keys[i] >> shift & mask]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

// The smallest keys of the buckets of n > 0 sorted keys, of which `negatives` have the sign. Returns their number: at most
// `buckets` >= 2.
inline uint32_t sketch_starts(const uint32_t* sorted, uint64_t n, uint64_t negatives, uint32_t buckets,
                              uint32_t* starts) {
  uint64_t of_negatives = (uint64_t{buckets} * negatives + n / 2) / n;
  if (negatives > 0 && negatives < n) of_negatives = std::clamp<uint64_t>(of_negatives, 1, buckets - 1);
  uint32_t count = 0;
  const auto side = [&](const uint64_t first, const uint64_t values, const uint64_t parts) {
    for (uint64_t b = 0; b < parts; ++b) {
      const uint32_t key = sorted[first + values * b / parts];
      if (count == 0 || starts[count - 1] != key) starts[count++] = key;
    }
  };
  side(0, negatives, std::min(of_negatives, negatives));
  side(negatives, n - negatives, std::min(buckets - of_negatives, n - negatives));
  return count;
}

// The mean of sorted keys of one sign, in f32, never outside of them, with their sign also if it is zero.
template <class T>
float sketch_mean(std::span<const uint32_t> keys) {
  const double sum = tree_sum(keys.size(), [&](uint64_t i) { return sketch_magnitude<T>(keys[i]); });
  const double first = sketch_magnitude<T>(keys.front()), last = sketch_magnitude<T>(keys.back());
  const double mean = std::clamp(sum / static_cast<double>(keys.size()), std::min(first, last), std::max(first, last));
  return static_cast<float>(keys.front() < sketch_first_positive<T> ? -mean : mean);
}

// The bucket of a key: how many of starts[1 … 255] are at most the key; missing buckets have the largest
// number.
inline uint32_t sketch_code(const uint32_t* starts, uint32_t key) {
  uint32_t code = 0;
  for (uint32_t half = sketch_buckets_max / 2; half > 0; half /= 2) code += starts[code + half] <= key ? half : 0;
  return code;
}

}  // namespace dr
