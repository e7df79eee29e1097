// Values of a normal distribution.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

inline std::vector<float> normal(size_t n, uint64_t seed) {
  std::mt19937_64 source(seed);
  std::normal_distribution<float> draw;
  std::vector<float> out(n);
  for (float& x : out) x = draw(source);
  return out;
}
