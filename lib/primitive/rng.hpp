// Counter-based random numbers and the mixer that they and the frame's check share (splitmix64's finaliser; Steele,
// Lea, Flood 2014). Draw i depends on (key, i) alone, never on thread order.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

inline constexpr uint64_t golden = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio

DR_HD constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

DR_HD constexpr uint64_t draw(uint64_t key, uint64_t position) { return mix64(key + (position + 1) * golden); }

// Uniform in [0, 1) with 24 bits.
DR_HD constexpr double unit_interval(uint64_t drawn) { return static_cast<double>(drawn >> 40) * 0x1p-24; }

DR_HD constexpr uint64_t combine(uint64_t key, uint64_t part) { return mix64((key ^ part) + golden); }

}  // namespace dr
