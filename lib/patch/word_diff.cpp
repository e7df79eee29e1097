#include "patch/word_diff.hpp"

#include <cstring>

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

template <class F>
decltype(auto) with_size(uint64_t size, F&& f) {
  if (size == 8) return f(uint64_t{});
  if (size == 4) return f(uint32_t{});
  if (size == 2) return f(uint16_t{});
  return f(uint8_t{});
}
bool is_word(uint64_t size) { return size == 1 || size == 2 || size == 4 || size == 8; }

}  // namespace

uint64_t diff_words_scalar(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                           std::byte* old, std::byte* values) {
  return with_size(d.size,
                   [&](auto bits) { return diff_scalar<decltype(bits)>(d, first, n, at, positions, old, values); });
}

uint64_t diff_rows(const word_diff& d, uint64_t first, uint64_t n, uint32_t* positions, void* old, void* values) {
  auto *const x = static_cast<std::byte*>(old), *const y = static_cast<std::byte*>(values);
  if (d.width == 1) return diff_words.best()(d, first, n, 0, positions, x, y);
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

void gather_words(uint64_t row_bytes, const void* from, const uint32_t* positions, uint64_t n, void* values) {
  if (is_word(row_bytes))
    return with_size(row_bytes, [&](auto bits) {
      using Bits = decltype(bits);
      for (uint64_t i = 0; i < n; ++i) static_cast<Bits*>(values)[i] = static_cast<const Bits*>(from)[positions[i]];
    });
  for (uint64_t i = 0; i < n; ++i)
    std::memcpy(static_cast<std::byte*>(values) + i * row_bytes,
                static_cast<const std::byte*>(from) + positions[i] * row_bytes, row_bytes);
}

void assign_words(uint64_t row_bytes, const void* values, const uint32_t* positions, uint64_t n, void* to) {
  if (is_word(row_bytes))
    return with_size(row_bytes, [&](auto bits) {
      using Bits = decltype(bits);
      for (uint64_t i = 0; i < n; ++i) static_cast<Bits*>(to)[positions[i]] = static_cast<const Bits*>(values)[i];
    });
  for (uint64_t i = 0; i < n; ++i)
    std::memcpy(static_cast<std::byte*>(to) + positions[i] * row_bytes,
                static_cast<const std::byte*>(values) + i * row_bytes, row_bytes);
}

}  // namespace dr
