#include "patch/advance_history.hpp"

#include <cstring>

#include "primitive/change_history.hpp"
#include "primitive/word.hpp"

namespace dr {

void advance_history(uint8_t* history, uint64_t rows, uint32_t dtype, uint32_t width, const uint32_t* positions,
                     uint64_t n, const void* old, const void* now) {
  const uint64_t words = rows * width;
  uint64_t at = 0;
  for (; at + 8 <= words; at += 8) store(history + at, history_later(load<uint64_t>(history + at)));
  for (; at < words; ++at) history[at] = static_cast<uint8_t>(history_later(history[at]));
  with_word_type(dtype, [&](auto type) {
    using Word = decltype(type);
    using Bits = typename Word::bits;
    // (Of a dense row they are in the frame, where words of 8 bytes are aligned to 4.)
    const auto at_word = [](const void* from, uint64_t w) {
      return load<Bits>(static_cast<const uint8_t*>(from) + w * sizeof(Bits));
    };
    for (uint64_t i = 0; i < n; ++i)
      for (uint64_t k = 0; k < width; ++k) {
        const Bits a = at_word(old, i * width + k), b = at_word(now, i * width + k);
        if (a == b) continue;
        uint8_t& h = history[(positions ? positions[i] : i) * width + k];
        h = history_changed(h, static_cast<Bits>(Word::ordered(b) - Word::ordered(a)) & Word::top);
      }
  });
}

void gather_history(const uint8_t* history, uint32_t width, const uint32_t* positions, uint64_t n, uint8_t* to) {
  if (width == 1)
    for (uint64_t i = 0; i < n; ++i) to[i] = history[positions[i]];
  else
    for (uint64_t i = 0; i < n; ++i) std::memcpy(to + i * width, history + uint64_t{positions[i]} * width, width);
}

}  // namespace dr
