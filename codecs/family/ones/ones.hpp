// Bit strings (low bit of a byte first) as the ascending positions of their ones, and back: bitmaps, and the unary half of
// Elias and Fano's code, where the i-th one stands for its position less i ("ranked").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// ---- Positions to bits -----------------------------------------------------------------------------------------
//   x [n] ascending     out [size] is written whole     the i-th one stands at x[i] >> shift, plus i if ranked
// Positions strictly ascend and are below 8 · size.
using set_ones_fn = void (*)(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size);

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

// Fast ways write a byte for each one, which no earlier one delays, and gather a window of them into bits.
template <bool ranked>
[[gnu::always_inline]] inline uint64_t mark_window(const uint32_t* x, uint64_t n, unsigned shift, uint64_t i,
                                                   uint64_t begin, uint8_t* marks) {
  const uint64_t end = begin + ones_window;
  const auto at = [&](uint64_t k) { return uint64_t{x[k] >> shift} + (ranked ? k : 0); };
  for (; i + 8 <= n && at(i + 7) < end; i += 8)
    for (unsigned k = 0; k < 8; ++k) marks[at(i + k) - begin] = 0xff;
  for (; i < n && at(i) < end; ++i) marks[at(i) - begin] = 0xff;
  return i;
}

#if DR_X86
DR_AVX2_BEGIN
template <bool ranked>
void set_ones_avx2(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  alignas(64) uint8_t marks[ones_window] = {};
  uint64_t i = 0;
  for (uint64_t byte = 0; byte < size; byte += ones_window / 8) {
    const uint64_t before = i, bytes = size - byte < ones_window / 8 ? size - byte : ones_window / 8;
    i = mark_window<ranked>(x, n, shift, i, 8 * byte, marks);
    if (i == before) {
      std::memset(out + byte, 0, bytes);
      continue;
    }
    uint32_t words[ones_window / 32];
    for (uint64_t w = 0; w < ones_window / 32; ++w) {
      auto* const from = reinterpret_cast<__m256i*>(marks + 32 * w);
      words[w] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_load_si256(from)));
      _mm256_store_si256(from, _mm256_setzero_si256());
    }
    std::memcpy(out + byte, words, bytes);
  }
}
DR_ISA_END

DR_AVX512_BEGIN
template <bool ranked>
void set_ones_avx512(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  alignas(64) uint8_t marks[ones_window] = {};
  uint64_t i = 0;
  for (uint64_t byte = 0; byte < size; byte += ones_window / 8) {
    const uint64_t before = i, bytes = size - byte < ones_window / 8 ? size - byte : ones_window / 8;
    i = mark_window<ranked>(x, n, shift, i, 8 * byte, marks);
    if (i == before) {
      std::memset(out + byte, 0, bytes);
      continue;
    }
    uint64_t words[ones_window / 64];
    for (uint64_t w = 0; w < ones_window / 64; ++w) {
      words[w] = _mm512_movepi8_mask(_mm512_load_si512(marks + 64 * w));
      _mm512_store_si512(marks + 64 * w, _mm512_setzero_si512());
    }
    std::memcpy(out + byte, words, bytes);
  }
}
DR_ISA_END
#endif

// ---- How many there are ----------------------------------------------------------------------------------------
using count_ones_fn = uint64_t (*)(const uint8_t* in, uint64_t size);

inline uint64_t count_ones_scalar(const uint8_t* in, uint64_t size) {
  uint64_t ones = 0, at = 0;
  for (; at + 8 <= size; at += 8) ones += popcount(load<uint64_t>(in + at));
  return ones + popcount(load_bytes(in + at, static_cast<unsigned>(size - at)));
}

#if DR_X86
DR_AVX2_BEGIN
inline uint64_t count_ones_avx2(const uint8_t* in, uint64_t size) {
  uint64_t ones[4] = {}, at = 0;
  for (; at + 32 <= size; at += 32)
    for (unsigned k = 0; k < 4; ++k) {
      uint64_t word;
      std::memcpy(&word, in + at + 8 * k, 8);
      ones[k] += static_cast<uint64_t>(_mm_popcnt_u64(word));
    }
  for (; at < size; ++at) ones[0] += static_cast<uint64_t>(_mm_popcnt_u32(in[at]));
  return ones[0] + ones[1] + ones[2] + ones[3];
}
DR_ISA_END

DR_AVX512_BEGIN
inline uint64_t count_ones_avx512(const uint8_t* in, uint64_t size) {
  __m512i a = _mm512_setzero_si512(), b = a;
  uint64_t at = 0;
  for (; at + 128 <= size; at += 128) {
    a = _mm512_add_epi64(a, _mm512_popcnt_epi64(_mm512_loadu_si512(in + at)));
    b = _mm512_add_epi64(b, _mm512_popcnt_epi64(_mm512_loadu_si512(in + at + 64)));
  }
  for (; at < size; at += 64) {
    const __mmask64 rest = size - at >= 64 ? ~__mmask64{0} : (__mmask64{1} << (size - at)) - 1;
    a = _mm512_add_epi64(a, _mm512_popcnt_epi64(_mm512_maskz_loadu_epi8(rest, in + at)));
  }
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(a, b)));
}
DR_ISA_END
#endif

// ---- Bits to positions -----------------------------------------------------------------------------------------
// Of the ones in bytes [begin, end) of a string, whose first is the string's i-th: writes out[i] and on. Returns the i behind
// them. The caller has counted: there are at most n ones in the string, and out has room for n. begin: a multiple of 8.
using list_ones_fn = uint64_t (*)(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n,
                                  uint32_t* out);

template <bool ranked>
uint64_t list_ones_scalar(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  for (uint64_t at = begin; at < end; at += 8) {
    uint64_t word = load_bytes(in + at, static_cast<unsigned>(end - at < 8 ? end - at : 8));
    for (; word && i < n; word &= word - 1, ++i)
      out[i] = static_cast<uint32_t>(8 * at + static_cast<unsigned>(__builtin_ctzll(word)) - (ranked ? i : 0));
  }
  return i;
}

#if DR_X86
// The positions of a byte's ones, a byte each.
inline constexpr auto byte_ones = [] {
  std::array<uint64_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned b = 0, k = 0; b < 8; ++b)
      if (byte >> b & 1) table[byte] |= uint64_t{b} << 8 * k++;
  return table;
}();

DR_AVX2_BEGIN
template <bool ranked>
uint64_t list_ones_avx2(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  const __m256i lanes = ranked ? _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) : _mm256_setzero_si256();
  uint64_t at = begin;
  // A word writes at most 64, and 8 behind its last.
  for (; at + 8 <= end && i + 72 <= n; at += 8) {
    uint64_t word;
    std::memcpy(&word, in + at, 8);
    for (uint64_t base = 8 * at; word; word >>= 8, base += 8) {
      const auto byte = static_cast<uint8_t>(word);
      const __m256i found = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(byte_ones[byte])));
      const __m256i first = _mm256_set1_epi32(static_cast<int>(base - (ranked ? i : 0)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_sub_epi32(_mm256_add_epi32(found, first), lanes));
      i += static_cast<uint64_t>(_mm_popcnt_u32(byte));
    }
  }
  return list_ones_scalar<ranked>(in, at, end, i, n, out);
}
DR_ISA_END

DR_AVX512_BEGIN
template <bool ranked>
uint64_t list_ones_avx512(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  const __m512i bytes =
      _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                       0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
  const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i sixteen = _mm512_set1_epi32(16);
  uint64_t at = begin;
  for (; at + 8 <= end && i + 64 <= n; at += 8) {
    uint64_t word;
    std::memcpy(&word, in + at, 8);
    if (!word) continue;
    const auto ones = static_cast<unsigned>(_mm_popcnt_u64(word));
    const __m512i found = _mm512_maskz_compress_epi8(word, bytes);
    __m512i first = _mm512_set1_epi32(static_cast<int>(8 * at - (ranked ? i : 0)));
    if (ranked) first = _mm512_sub_epi32(first, iota);
    uint32_t* const to = out + i;
    i += ones;
    _mm512_storeu_si512(to, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(found))));
    if (ones <= 16) continue;
    // How many quarters are used no branch would guess: three at once.
    if (ranked) first = _mm512_sub_epi32(first, sixteen);
    _mm512_storeu_si512(to + 16, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(found, 1))));
    if (ranked) first = _mm512_sub_epi32(first, sixteen);
    _mm512_storeu_si512(to + 32, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(found, 2))));
    if (ones <= 48) continue;
    if (ranked) first = _mm512_sub_epi32(first, sixteen);
    _mm512_storeu_si512(to + 48, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(found, 3))));
  }
  return list_ones_scalar<ranked>(in, at, end, i, n, out);
}
DR_ISA_END

template <bool ranked>
inline constexpr cpu_table<set_ones_fn> set_ones{set_ones_scalar<ranked>, set_ones_avx2<ranked>,
                                                 set_ones_avx512<ranked>};
template <bool ranked>
inline constexpr cpu_table<list_ones_fn> list_ones{list_ones_scalar<ranked>, list_ones_avx2<ranked>,
                                                   list_ones_avx512<ranked>};
inline constexpr cpu_table<count_ones_fn> count_ones{count_ones_scalar, count_ones_avx2, count_ones_avx512};
#else
template <bool ranked>
inline constexpr cpu_table<set_ones_fn> set_ones{set_ones_scalar<ranked>};
template <bool ranked>
inline constexpr cpu_table<list_ones_fn> list_ones{list_ones_scalar<ranked>};
inline constexpr cpu_table<count_ones_fn> count_ones{count_ones_scalar};
#endif

}  // namespace dr
