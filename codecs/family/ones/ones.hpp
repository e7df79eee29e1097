// Bit strings (low bit of a byte first) as the ascending positions of their ones, and back: bitmaps, and the unary half
// of Elias and Fano's code, where the i-th one means its position less i ("ranked").
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// ---- Positions to bits -----------------------------------------------------------------------------------------
//   x [n] ascending     out [size] is overwritten     the i-th one is at x[i] >> shift, plus i if ranked
// Positions strictly ascend and are below 8 · size.
template <bool ranked>
void set_ones_scalar(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  std::memset(out, 0, size);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t at = uint64_t{x[i] >> shift} + (ranked ? i : 0);
    out[at / 8] |= static_cast<uint8_t>(1u << at % 8);
  }
}

inline constexpr uint64_t ones_window =
    4096;  // positions that are bytes for a moment; 8192 and 2048 are slower (ones bitmap)

// Fast versions write a byte per one, independent of earlier ones, and then gather a window of bytes into bits.
template <bool ranked>
DR_EVERYWHERE uint64_t mark_window(const uint32_t* x, uint64_t n, unsigned shift, uint64_t i, uint64_t begin,
                                   uint8_t* marks) {
  const uint64_t end = begin + ones_window;
  const auto at = [&](uint64_t k) { return uint64_t{x[k] >> shift} + (ranked ? k : 0); };
  for (; i + 8 <= n && at(i + 7) < end; i += 8)
    for (unsigned k = 0; k < 8; ++k) marks[at(i + k) - begin] = 0xff;
  for (; i < n && at(i) < end; ++i) marks[at(i) - begin] = 0xff;
  return i;
}

// Sets the bits window by window. gather returns a word whose bit j is 1 where byte j at `marks` is 0xff, and clears
// these bytes.
template <bool ranked, class Word, Word (*gather)(uint8_t* marks)>
DR_EVERYWHERE void set_ones_with(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  constexpr unsigned width = 8 * sizeof(Word);
  alignas(64) uint8_t marks[ones_window] = {};
  uint64_t i = 0;
  for (uint64_t byte = 0; byte < size; byte += ones_window / 8) {
    const uint64_t before = i, bytes = size - byte < ones_window / 8 ? size - byte : ones_window / 8;
    i = mark_window<ranked>(x, n, shift, i, 8 * byte, marks);
    if (i == before) {
      std::memset(out + byte, 0, bytes);
      continue;
    }
    Word words[ones_window / width];
    for (unsigned w = 0; w < ones_window / width; ++w) words[w] = gather(marks + width * w);
    std::memcpy(out + byte, words, bytes);
  }
}

template <bool ranked>
void set_ones_avx2(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size);
template <bool ranked>
void set_ones_avx512(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size);
template <bool ranked>
void set_ones_neon(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size);

template <bool ranked>
inline constexpr cpu_table<decltype(&set_ones_scalar<ranked>)> set_ones{
    set_ones_scalar<ranked>, on_x86(set_ones_avx2<ranked>), on_x86(set_ones_avx512<ranked>),
    on_arm(set_ones_neon<ranked>)};

// ---- Number of ones ----------------------------------------------------------------------------------------
inline uint64_t count_ones_scalar(const uint8_t* in, uint64_t size) {
  uint64_t ones = 0, at = 0;
  for (; at + 8 <= size; at += 8) ones += popcount(load<uint64_t>(in + at));
  return ones + popcount(load_bytes(in + at, static_cast<unsigned>(size - at)));
}

uint64_t count_ones_avx2(const uint8_t* in, uint64_t size);
uint64_t count_ones_avx512(const uint8_t* in, uint64_t size);
uint64_t count_ones_neon(const uint8_t* in, uint64_t size);
inline constexpr cpu_table<decltype(&count_ones_scalar)> count_ones{count_ones_scalar, on_x86(count_ones_avx2),
                                                                    on_x86(count_ones_avx512), on_arm(count_ones_neon)};

// ---- Bits to positions -----------------------------------------------------------------------------------------
// Of the ones in bytes [begin, end) of a string, whose first is the string's i-th: writes out[i] and on. Returns the i
// after them. The caller guarantees at most n ones in the string, and room for n in out. begin: a
// multiple of 8.
template <bool ranked>
uint64_t list_ones_scalar(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  for (uint64_t at = begin; at < end; at += 8) {
    uint64_t word = load_bytes(in + at, static_cast<unsigned>(end - at < 8 ? end - at : 8));
    for (; word && i < n; word &= word - 1, ++i)
      out[i] = static_cast<uint32_t>(8 * at + static_cast<unsigned>(__builtin_ctzll(word)) - (ranked ? i : 0));
  }
  return i;
}

template <bool ranked>
uint64_t list_ones_avx2(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out);
template <bool ranked>
uint64_t list_ones_avx512(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out);
template <bool ranked>
uint64_t list_ones_neon(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out);

template <bool ranked>
inline constexpr cpu_table<decltype(&list_ones_scalar<ranked>)> list_ones{
    list_ones_scalar<ranked>, on_x86(list_ones_avx2<ranked>), on_x86(list_ones_avx512<ranked>),
    on_arm(list_ones_neon<ranked>)};

}  // namespace dr
