// The history of a weight in a chain of patches, one byte that is equal on the sender and its receivers (FORMAT.md,
// Histories). Bits 0–4: patches since its last change, at most 31; 0: it never changed · bits 5–6: how long it was
// unchanged before that · bit 7: whether it decreased.
#pragma once

#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/rng.hpp"

namespace dr {

inline constexpr uint8_t history_age = 0x1f, history_down = 0x80;

// The histories of eight weights one patch later.
constexpr uint64_t history_later(uint64_t h) {
  constexpr uint64_t ones = 0x0101010101010101;
  const uint64_t age = h & ones * history_age;
  const uint64_t some = (age + ones * history_age) >> 5 & ones, most = (age + ones) >> 5 & ones;
  return h + (some & ~most);
}

// The history of a weight that the patch changes, after history_later.
constexpr uint8_t history_changed(uint8_t h, bool down) {
  const unsigned age = h & history_age;
  const unsigned stood = age == 0 || age == history_age ? 0 : age <= 3 ? 1 : age <= 9 ? 2 : 3;
  return static_cast<uint8_t>((down ? history_down : 0) | stood << 5 | 1);
}

// A check by which two sides compare their histories of n weights. nullptr, before the first change: 0.
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
