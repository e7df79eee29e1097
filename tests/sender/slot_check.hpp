// The checks of slots, as lib/sender/slot.hpp lays slots out: puts those of changed bytes right, so that what lies behind them is reached.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fuzz/fix_check.hpp"
#include "fuzz/number_types.hpp"

namespace slot_check {

struct field {
  const char* name;
  size_t at, bytes;
};
// Of a head; the sizes of frames follow, eight bytes each.
constexpr field fields[] = {{"tag", 0, 8},    {"longest", 8, 8}, {"failures", 16, 4}, {"failed", 20, 4},
                            {"flags", 24, 4}, {"tensor", 28, 4}, {"reserved", 32, 4}};
constexpr size_t check_at = 36, head_size = 40;
constexpr size_t device_words = 5;  // behind the head for each frame, on a device: its size, and why there is none

using frame_check::combine;

// words: behind the head.
inline void seal(uint8_t* slot, size_t words) {
  const auto of = [&](size_t at, size_t bytes) { return frame_check::number(slot + at, bytes); };
  uint64_t sum = combine(combine(of(0, 8), of(8, 8)), of(16, 4) << 32 | of(20, 4));
  sum = combine(combine(sum, of(28, 4) << 32 | of(24, 4)), of(32, 4));
  for (size_t i = 0; i < words; ++i) sum = combine(sum, of(head_size + 8 * i, 8));
  little_endian::put(slot + check_at, sum >> 32, 4);
}

// The head of a rank among numbers that an all-reduce adds up: tag, failures, failed, tensor, check, as integers of half the bytes of a number.
constexpr size_t sum_size = 48;

// type: of the numbers. A head with a number that is no such integer stays as it is.
inline void seal_sum(uint8_t* head, dr_dtype type) {
  const size_t number = number_types::size_of(type), digit = number / 2, most = digit == 2 ? 65535 : 255;
  uint8_t words[sum_size / 2];
  for (size_t i = 0; i < sizeof words / digit; ++i) {
    const float x = number_types::get(head + i * number, type);
    if (!(x >= 0 && x <= static_cast<float>(most))) return;
    little_endian::put(words + i * digit, static_cast<uint64_t>(x), digit);
  }
  const auto of = [&](size_t at, size_t bytes) { return frame_check::number(words + at, bytes); };
  const uint64_t sum = combine(combine(of(0, 8), of(8, 4) << 32 | of(12, 4)), of(16, 4));
  little_endian::put(words + 20, sum >> 32, 4);
  for (size_t i = 20 / digit; i < sizeof words / digit; ++i)
    number_types::put(head + i * number, type, static_cast<float>(of(i * digit, digit)));
}

}  // namespace slot_check
