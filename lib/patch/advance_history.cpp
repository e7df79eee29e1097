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
    const auto* const a = static_cast<const typename Word::bits*>(old);
    const auto* const b = static_cast<const typename Word::bits*>(now);
    for (uint64_t i = 0; i < n; ++i)
      for (uint64_t k = 0; k < width; ++k) {
        const uint64_t w = i * width + k;
        if (a[w] == b[w]) continue;
        uint8_t& h = history[(positions ? positions[i] : i) * width + k];
        h = history_changed(h, static_cast<typename Word::bits>(Word::ordered(b[w]) - Word::ordered(a[w])) & Word::top);
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
