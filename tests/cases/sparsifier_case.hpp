// What a sparsifier keeps, by plain code written from its SPEC.md. Needs the standard library only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

using positions = std::vector<uint64_t>;

// The values of a tensor, as a sparsifier sees them.
struct kept_input {
  uint32_t dtype;
  std::vector<uint32_t> bits;  // of each value
  uint64_t universe;
  positions indices;     // of a sparse tensor: where its values are; else empty
  uint64_t shared;       // the tensor's shared key (FORMAT.md, Random numbers)
  uint64_t segment = 0;  // elements of each segment but the last; 0: the tensor is one

  uint32_t magnitude(uint64_t i) const { return bits[i] & (format_of(dtype).sign() - 1); }
};

struct sparsifier_plan {
  const char* text;                          // in the plan's words: "topr(ratio=0.01)"
  positions (*keeps)(const kept_input& in);  // ascending positions in `bits`
  uint64_t whole = 1;                        // segments are multiples of so many elements
  bool of_base = false;                      // makes patches: here of a base of zeros
  bool weighs = false;                       // looks at weights beside: here weight_at(i)
};

struct sparsifier_case {
  const char* name;
  std::vector<sparsifier_plan> plans;
  bool dense_only = false;  // refuses what arrives sparse
};

// One for each built-in sparsifier: a written list, in sparsifier_cases.cpp.
std::span<const sparsifier_case> sparsifiers();

inline double weight_at(uint64_t i) { return i % 7 ? 0.02 * static_cast<double>(i * 37 % 101) - 1 : 0; }

// ---- What several of them need -----------------------------------------------------------------------------

// splitmix64 as its authors describe it, and FORMAT.md's way to combine keys.
inline uint64_t splitmix(uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}
inline uint64_t combined(uint64_t key, uint64_t part) { return splitmix(key ^ part); }
inline uint64_t drawn(uint64_t key, uint64_t i) { return splitmix(key + i * 0x9e3779b97f4a7c15); }

inline positions reaching(const kept_input& in, uint32_t magnitude) {
  positions out;
  for (uint64_t i = 0; i < in.bits.size(); ++i)
    if (in.magnitude(i) >= magnitude) out.push_back(i);
  return out;
}

// The `count` largest, ties by lower index, never zeros.
inline positions largest(const kept_input& in, uint64_t count) {
  positions order = reaching(in, 1);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return in.magnitude(a) > in.magnitude(b); });
  order.resize(std::min<uint64_t>(order.size(), count));
  std::sort(order.begin(), order.end());
  return order;
}

inline uint64_t share_of(double ratio, uint64_t universe) {
  return std::min(
      universe, std::max<uint64_t>(1, static_cast<uint64_t>(std::floor(ratio * static_cast<double>(universe) + 1e-9))));
}

// dgc's, with a threshold from one value of each of m stretches.
positions kept_by_dgc(const kept_input& in, uint64_t key, uint64_t target, double share, int corrections = 10);
// random's: `count` of the universe.
positions drawn_positions(uint64_t key, uint64_t universe, uint64_t count);

}  // namespace dr::cases
