// Packs of inputs (pack.py): one behind the other, each behind its length in four bytes, low first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Hands over a copy of each input, so that a read behind it is seen, with its number and its place. False if the pack ends within one.
template <class F>
bool each_of_pack(std::span<const uint8_t> pack, F use) {
  for (size_t at = 0, number = 0; at < pack.size(); ++number) {
    if (pack.size() - at < 4) return false;
    const size_t size = pack[at] | size_t{pack[at + 1]} << 8 | size_t{pack[at + 2]} << 16 | size_t{pack[at + 3]} << 24;
    at += 4;
    if (size > pack.size() - at) return false;
    const auto input = pack.subspan(at, size);
    use(std::vector<uint8_t>(input.begin(), input.end()), number, at);
    at += size;
  }
  return true;
}
