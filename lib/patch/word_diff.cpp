#include "patch/word_diff.hpp"

#include <cstring>

#include "primitive/word.hpp"

namespace dr {
namespace {

template <class Bits>
uint64_t diff_scalar(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
                     std::byte* values) {
  const auto *const a = reinterpret_cast<const Bits*>(d.base) + first, *const b =
                                                                           reinterpret_cast<const Bits*>(d.now) + first;
  auto *const x = reinterpret_cast<Bits*>(old), *const y = reinterpret_cast<Bits*>(values);
  constexpr uint64_t step = 8 / sizeof(Bits);
  uint64_t found = 0, i = 0;
  const auto look = [&](uint64_t end) {
    for (; i < end; ++i) {
      if (a[i] == b[i]) continue;
      if (positions) {
        positions[found] = at + static_cast<uint32_t>(i);
        x[found] = a[i];
        y[found] = b[i];
      }
      ++found;
    }
  };
  while (i + step <= n) {
    if (load<uint64_t>(a + i) == load<uint64_t>(b + i))
      i += step;
    else
      look(i + step);
  }
  look(n);
  return found;
}

}  // namespace

uint64_t diff_words_scalar(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values) {
  return with_word(d.size,
                   [&](auto bits) { return diff_scalar<decltype(bits)>(d, first, n, at, positions, old, values); });
}

uint64_t diff_words(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
                    std::byte* values, cpu_level level) {
  const uint64_t whole = n - n % diff_step;
  const uint64_t found = diff_vectors.at(level)(d, first, whole, at, positions, old, values);
  if (whole == n) return found;
  if (positions) {
    positions += found;
    old += found * d.size;
    values += found * d.size;
  }
  return found +
         diff_words_scalar(d, first + whole, n - whole, at + static_cast<uint32_t>(whole), positions, old, values);
}

uint64_t diff_rows(const word_diff& d, uint64_t first, uint64_t n, uint32_t* positions, void* old, void* values) {
  auto *const x = static_cast<std::byte*>(old), *const y = static_cast<std::byte*>(values);
  if (d.width == 1) return diff_words(d, first, n, 0, positions, x, y, cpu());
  const uint64_t bytes = uint64_t{d.width} * d.size;
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const std::byte *const a = d.base + (first + i) * bytes, *const b = d.now + (first + i) * bytes;
    if (std::memcmp(a, b, bytes) == 0) continue;
    if (positions) {
      positions[found] = static_cast<uint32_t>(i);
      std::memcpy(x + found * bytes, a, bytes);
      std::memcpy(y + found * bytes, b, bytes);
    }
    ++found;
  }
  return found;
}

}  // namespace dr
