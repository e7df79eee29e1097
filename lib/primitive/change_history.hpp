// What the patches of a chain tell of a weight, in a byte that its sender and its receivers have alike (FORMAT.md,
// Histories): bits 0–4 the patches since it changed, 31 or more are 31, 0: it never did · bits 5–6 how long it had stood
// before that · bit 7 whether it went down.
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/rng.hpp"

namespace dr {

inline constexpr uint8_t history_age = 0x1f, history_down = 0x80;

// Eight weights, one patch later.
constexpr uint64_t history_later(uint64_t h) {
  constexpr uint64_t ones = 0x0101010101010101;
  const uint64_t age = h & ones * history_age;
  const uint64_t some = (age + ones * history_age) >> 5 & ones, most = (age + ones) >> 5 & ones;
  return h + (some & ~most);
}

// A weight that the patch changes, after it has become one patch older.
constexpr uint8_t history_changed(uint8_t h, bool down) {
  const unsigned age = h & history_age;
  const unsigned stood = age == 0 || age == history_age ? 0 : age <= 3 ? 1 : age <= 9 ? 2 : 3;
  return static_cast<uint8_t>((down ? history_down : 0) | stood << 5 | 1);
}

// By which two sides see that their histories of n weights are the same. nullptr: nothing has changed yet, 0.
inline uint32_t history_check(const uint8_t* history, uint64_t n) {
  uint64_t sum = 0;
  for (uint64_t i = 0; history && i < n; i += 8) {
    uint64_t eight = 0;
    if (n - i >= 8)
      eight = load<uint64_t>(history + i);
    else
      std::memcpy(&eight, history + i, n - i);
    if (eight) sum += mix64(eight + (i / 8 + 1) * golden);
  }
  return static_cast<uint32_t>(sum >> 32);
}

}  // namespace dr
