// Bit strings that the lanes of a block make together in shared memory, and their way to a payload.
#pragma once

#include <cstdint>

#include "primitive/atomics.hpp"
#include "primitive/bits.hpp"

namespace dr {

// Sets bits in zeroed words of shared memory, but none from word `end` on, which only input that breaks a promise would
// reach.
class tile_bits {
 public:
  DR_HD tile_bits(uint32_t* words, uint32_t end, uint32_t bit)
      : words_(words), end_(end), word_(bit / 32), fill_(bit % 32) {}

  DR_HD void put(uint32_t value, unsigned bits) {  // value < 2^bits, bits <= 32
    const uint64_t both = uint64_t{value} << fill_;
    held_ |= static_cast<uint32_t>(both);
    fill_ += bits;
    if (fill_ < 32) return;
    finish();
    held_ = static_cast<uint32_t>(both >> 32);
    ++word_;
    fill_ -= 32;
  }
  DR_HD void put_unary(uint32_t zeros) {
    fill_ += zeros;
    if (fill_ >= 32) {
      finish();
      held_ = 0;
      word_ += fill_ / 32;
      fill_ %= 32;
    }
    put(1, 1);
  }
  DR_HD void finish() const {
    if (held_ && word_ < end_) atomic_or(words_ + word_, held_);
  }

 private:
  uint32_t* words_;
  uint32_t end_, word_, fill_, held_ = 0;
};

// `size` bytes of words, and a word that is read after them, to any address: whole words of `to` in words; of those that
// it shares with its neighbours its own bytes.
DR_HD inline void put_bytes(const uint32_t* from, uint32_t size, uint8_t* to, unsigned lane, unsigned lanes) {
  const auto over = static_cast<uint32_t>((0 - reinterpret_cast<uintptr_t>(to)) % 4);
  const uint32_t front = over < size ? over : size, middle = (size - front) / 4, rear = front + 4 * middle;
  for (uint32_t i = lane; i < middle; i += lanes)
    reinterpret_cast<uint32_t*>(to + front)[i] = funnel(from[i], from[i + 1], 8 * front);
  const auto byte = [&](uint32_t i) { to[i] = static_cast<uint8_t>(from[i / 4] >> (8 * (i % 4))); };
  if (lane < front) byte(lane);
  if (lane < size - rear) byte(rear + lane);
}

}  // namespace dr
