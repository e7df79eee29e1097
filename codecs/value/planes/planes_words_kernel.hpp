// Words to planes of bytes and back, and what bytes a plane has (SPEC.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// Numbers are rotated left by a bit, so that the sign follows the mantissa: then the exponents of bf16 and f32 are a byte.
template <class Bits, bool is_number>
struct planes_word {
  using bits = Bits;
  static constexpr bool number = is_number;
  static constexpr unsigned size = sizeof(Bits);
  static constexpr Bits turned(Bits w) { return number ? static_cast<Bits>(w << 1 | w >> (8 * size - 1)) : w; }
  static constexpr Bits turned_back(Bits w) { return number ? static_cast<Bits>(w >> 1 | w << (8 * size - 1)) : w; }
};

// Where planes are written to, planes[p][i] is byte p of word i, from the lowest. Those of the mask `past` go past the
// caches, as far as the set has that: much that nothing reads soon. Then fence_streams before another thread reads them.
template <class Word>
struct planes_target {
  uint8_t* planes[Word::size];
  uint32_t past = 0;

  planes_target behind(uint64_t n) const {
    planes_target t = *this;
    for (uint8_t*& plane : t.planes) plane += n;
    return t;
  }
  // Words before those whose stores past the caches are aligned. 0 and no `past`, if they are not at the same words.
  uint64_t lead(uint64_t aligned) {
    uint64_t words = 0;
    for (unsigned p = 0, first = 1; p < Word::size; ++p) {
      if (!(past >> p & 1)) continue;
      const uint64_t own = (0 - reinterpret_cast<uintptr_t>(planes[p])) % aligned;
      if (!first && own != words) return past = 0;
      words = own;
      first = 0;
    }
    return words;
  }
};
// Size of an array from which on writes bypass the caches.
inline constexpr uint64_t planes_past_from = uint64_t{4} << 20;

template <class Word>
DR_EVERYWHERE void planes_split_with(const typename Word::bits* words, uint64_t n, const planes_target<Word>& to) {
  for (uint64_t i = 0; i < n; ++i) {
    const auto w = Word::turned(words[i]);
    for (unsigned p = 0; p < Word::size; ++p) to.planes[p][i] = static_cast<uint8_t>(w >> 8 * p);
  }
}
template <class Word>
DR_EVERYWHERE void planes_join_with(const uint8_t* const* planes, uint64_t n, typename Word::bits* words) {
  using bits = typename Word::bits;
  for (uint64_t i = 0; i < n; ++i) {
    bits w = 0;
    for (unsigned p = 0; p < Word::size; ++p) w = static_cast<bits>(w | static_cast<bits>(bits{planes[p][i]} << 8 * p));
    words[i] = Word::turned_back(w);
  }
}
// Vectors between the words before aligned stores and those after the last whole vector. take(words, n, to) splits,
// take(planes, n, words) joins the words of n that fill vectors, and returns their number.
template <class Word, class Take>
DR_EVERYWHERE void planes_split_by(const typename Word::bits* words, uint64_t n, planes_target<Word> to, Take&& take) {
  uint64_t done = std::min(n, to.lead(64));
  planes_split_with<Word>(words, done, to);
  done += take(words + done, n - done, to.behind(done));
  planes_split_with<Word>(words + done, n - done, to.behind(done));
}
template <class Word, class Take>
DR_EVERYWHERE void planes_join_by(const uint8_t* const* planes, uint64_t n, typename Word::bits* words, bool past,
                                  Take&& take) {
  const uint8_t* at[Word::size];
  uint64_t done = past ? std::min<uint64_t>(n, (0 - reinterpret_cast<uintptr_t>(words)) % 64 / Word::size) : 0;
  const auto behind = [&] {
    for (unsigned p = 0; p < Word::size; ++p) at[p] = planes[p] + done;
    return at;
  };
  planes_join_with<Word>(planes, done, words);
  done += take(behind(), n - done, words + done);
  planes_join_with<Word>(behind(), n - done, words + done);
}
template <class Word>
void planes_split_scalar(const typename Word::bits* words, uint64_t n, planes_target<Word> to) {
  planes_split_with<Word>(words, n, to);
}
// past: as above, of words.
template <class Word>
void planes_join_scalar(const uint8_t* const* planes, uint64_t n, typename Word::bits* words, bool) {
  planes_join_with<Word>(planes, n, words);
}
template <class Word>
void planes_split_avx2(const typename Word::bits* words, uint64_t n, planes_target<Word> to);
template <class Word>
void planes_join_avx2(const uint8_t* const* planes, uint64_t n, typename Word::bits* words, bool past);
template <class Word>
void planes_split_avx512(const typename Word::bits* words, uint64_t n, planes_target<Word> to);
template <class Word>
void planes_join_avx512(const uint8_t* const* planes, uint64_t n, typename Word::bits* words, bool past);
template <class Word>
inline constexpr cpu_table<decltype(&planes_split_scalar<Word>)> planes_split{
    planes_split_scalar<Word>, on_x86(planes_split_avx2<Word>), on_x86(planes_split_avx512<Word>)};
template <class Word>
inline constexpr cpu_table<decltype(&planes_join_scalar<Word>)> planes_join{
    planes_join_scalar<Word>, on_x86(planes_join_avx2<Word>), on_x86(planes_join_avx512<Word>)};

// The smallest and the largest byte, and the smallest nonzero one (255 if none).
struct planes_range {
  uint8_t least, above_zero, largest;
};
DR_EVERYWHERE planes_range planes_range_with(const uint8_t* bytes, uint64_t n) {
  uint8_t less = 255, largest = 0, least = 255;
  for (uint64_t i = 0; i < n; ++i) {
    const uint8_t b = bytes[i], below = static_cast<uint8_t>(b - 1);  // 255 for 0
    least = b < least ? b : least;
    less = below < less ? below : less;
    largest = b > largest ? b : largest;
  }
  return {least, static_cast<uint8_t>(less == 255 ? 255 : less + 1), largest};
}
inline planes_range planes_range_scalar(const uint8_t* bytes, uint64_t n) { return planes_range_with(bytes, n); }
planes_range planes_range_avx2(const uint8_t* bytes, uint64_t n);
planes_range planes_range_avx512(const uint8_t* bytes, uint64_t n);
inline constexpr cpu_table<decltype(&planes_range_scalar)> planes_range_of{
    planes_range_scalar, on_x86(planes_range_avx2), on_x86(planes_range_avx512)};

// Each byte less `by`, 0 if it is below.
DR_EVERYWHERE void planes_lower_with(uint8_t* bytes, uint64_t n, uint8_t by) {
  for (uint64_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>((bytes[i] > by ? bytes[i] : by) - by);
}
inline void planes_lower_scalar(uint8_t* bytes, uint64_t n, uint8_t by) { planes_lower_with(bytes, n, by); }
void planes_lower_avx2(uint8_t* bytes, uint64_t n, uint8_t by);
void planes_lower_avx512(uint8_t* bytes, uint64_t n, uint8_t by);
inline constexpr cpu_table<decltype(&planes_lower_scalar)> planes_lower{planes_lower_scalar, on_x86(planes_lower_avx2),
                                                                        on_x86(planes_lower_avx512)};

}  // namespace dr
