// Gradients to measure on, element by element, so that a GPU can make a billion of them: the same functions for the CPU.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define DR_EITHER __host__ __device__
#else
#define DR_EITHER
#endif

namespace gpu_bench {

enum class input_kind { laplace, constant, two_valued, ascending };

// splitmix64's finaliser over a counter.
DR_EITHER inline uint64_t bits_at(uint64_t seed, uint64_t i) {
  uint64_t x = (seed + 1) * 0xd1342543de82ef95 + (i + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Values like the gradients of the paper's Fig. 8, and the worst case of a selection by sampled thresholds.
DR_EITHER inline float element_at(input_kind kind, uint64_t seed, uint64_t i, uint64_t d) {
  const uint64_t bits = bits_at(seed, i);
  switch (kind) {
    case input_kind::constant: return 0.25f;
    case input_kind::two_valued: return bits % 50 == 0 ? -2.0f : 0.5f;
    case input_kind::ascending: return static_cast<float>(i) / static_cast<float>(d);
    case input_kind::laplace: break;
  }
  const float uniform = (static_cast<float>(bits >> 11) + 0.5f) * 0x1p-53f, magnitude = -logf(uniform) * 1e-3f;
  return bits & 1 ? magnitude : -magnitude;
}

// Ascending and spread evenly.
DR_EITHER inline int64_t index_at(uint64_t seed, uint64_t i, uint64_t count, uint64_t universe) {
  const uint64_t from = i * universe / count, to = (i + 1) * universe / count;
  return static_cast<int64_t>(from + (to > from ? bits_at(seed + 77, i) % (to - from) : 0));
}

// Weights in bf16; of them 2 % are moved to a neighbour, as a step of an optimizer with a small rate moves them.
DR_EITHER inline uint16_t weight_at(uint64_t seed, uint64_t i) {
  const uint64_t bits = bits_at(seed, i);
  // About 0.02 each, of either sign: exponents 117 to 123, none of them 0.
  return static_cast<uint16_t>((bits >> 48 & 0x807f) | (117 + bits % 7) << 7);
}
DR_EITHER inline uint16_t moved_at(uint64_t seed, uint64_t i) {
  const uint64_t bits = bits_at(seed + 1000003, i);
  const int step = bits % 50 != 0 ? 0 : bits >> 63 ? 1 : -1;
  return static_cast<uint16_t>(weight_at(seed, i) + step);
}

}  // namespace gpu_bench
