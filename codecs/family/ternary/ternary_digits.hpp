// Ternary digits, five a byte: b = 81·d0 + 27·d1 + 9·d2 + 3·d3 + d4, digits 0, 1 and 2 for -1, 0 and 1.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint32_t ternary_group = 5;        // 3^5 = 243 <= 256
inline constexpr uint8_t ternary_zeros = 121;       // 1·81 + 1·27 + 1·9 + 1·3 + 1: five zeros
inline constexpr uint8_t ternary_byte_max = 242;    // larger bytes are invalid
inline constexpr size_t ternary_digits_slack = 64;  // readable bytes after the digits of ternary_pack

// The largest magnitude of n values.
template <class T>
DR_EVERYWHERE uint32_t ternary_largest_with(const typename T::bits* values, uint64_t n) {
  typename T::bits largest = 0;
  for (uint64_t i = 0; i < n; ++i) largest = std::max<typename T::bits>(largest, values[i] & T::magnitude_mask);
  return largest;
}
template <class T>
uint32_t ternary_largest_scalar(const typename T::bits* values, uint64_t n) {
  return ternary_largest_with<T>(values, n);
}

DR_HD inline uint8_t ternary_byte(const uint8_t* digits) {
  return static_cast<uint8_t>(81 * digits[0] + 27 * digits[1] + 9 * digits[2] + 3 * digits[3] + digits[4]);
}
// groups bytes from 5 · groups digits.
inline void ternary_pack_scalar(const uint8_t* digits, size_t groups, uint8_t* out) {
  for (size_t g = 0; g < groups; ++g, digits += ternary_group) out[g] = ternary_byte(digits);
}

// The first invalid byte; `end` if there is none. (Compilers make vectors of the first loop.)
inline const uint8_t* ternary_stray(const uint8_t* in, const uint8_t* end) {
  uint8_t largest = 0;
  for (const uint8_t* at = in; at != end; ++at) largest = std::max(largest, *at);
  return largest <= ternary_byte_max ? end : std::find_if(in, end, [](uint8_t b) { return b > ternary_byte_max; });
}

DR_HD inline uint8_t ternary_digit(uint8_t byte, uint32_t place) {
  uint32_t rest = byte;
  for (; place + 1 < ternary_group; ++place) rest /= 3;
  return static_cast<uint8_t>(rest % 3);
}

// Whether the digits after the last of n values, in its byte, are 1.
DR_HD inline bool ternary_padding_is_zero(uint8_t last, uint64_t n) {
  for (auto place = static_cast<uint32_t>(n % ternary_group); place % ternary_group; ++place)
    if (ternary_digit(last, place) != 1) return false;
  return true;
}

// n numbers, numbers[d] for a digit d; of a byte above 242 any of them.
template <class Bits>
void ternary_unpack_scalar(const uint8_t* in, uint64_t n, const Bits* numbers, Bits* out) {
  for (uint64_t i = 0; i < n; ++in)
    for (uint32_t k = 0; k < ternary_group && i < n; ++k) out[i++] = numbers[ternary_digit(*in, k)];
}

template <class T>
uint32_t ternary_largest_avx2(const typename T::bits* values, uint64_t n);
template <class T>
uint32_t ternary_largest_avx512(const typename T::bits* values, uint64_t n);
void ternary_pack_avx2(const uint8_t* digits, size_t groups, uint8_t* out);
void ternary_pack_avx512(const uint8_t* digits, size_t groups, uint8_t* out);
template <class Bits>
void ternary_unpack_avx2(const uint8_t* in, uint64_t n, const Bits* numbers, Bits* out);
template <class Bits>
void ternary_unpack_avx512(const uint8_t* in, uint64_t n, const Bits* numbers, Bits* out);

template <class T>
inline constexpr cpu_table<decltype(&ternary_largest_scalar<T>)> ternary_largest{
    ternary_largest_scalar<T>, on_x86(ternary_largest_avx2<T>), on_x86(ternary_largest_avx512<T>)};
inline constexpr cpu_table<decltype(&ternary_pack_scalar)> ternary_pack{ternary_pack_scalar, on_x86(ternary_pack_avx2),
                                                                        on_x86(ternary_pack_avx512)};
template <class Bits>
inline constexpr cpu_table<decltype(&ternary_unpack_scalar<Bits>)> ternary_unpack{
    ternary_unpack_scalar<Bits>, on_x86(ternary_unpack_avx2<Bits>), on_x86(ternary_unpack_avx512<Bits>)};

// How the vectors read digits. b / 243 is 0.d0 d1 d2 d3 d4 in base 3, so digit k is the first one of frac(b · 3^k /
// 243). In 32 bits: y = b · F · 3^k mod 2^32 with F = ⌈2^32 / 243⌉, which is above it by less than 242 · 81 < 2^15,
// where digits that differ are 2^32 / 243 apart; so d = (y >= 2^32 / 3) + (y >= 2 · 2^32 / 3).
inline constexpr uint32_t ternary_fraction = 17674763;
static_assert(uint64_t{ternary_fraction} * 243 >= uint64_t{1} << 32 &&
              (uint64_t{ternary_fraction} - 1) * 243 < uint64_t{1} << 32);
inline constexpr uint32_t ternary_third = 1431655766, ternary_thirds = 2863311531;  // rounded up
// The same of one digit, for a GPU: a division would take longer.
DR_HD inline uint32_t ternary_digit_by_fraction(uint8_t byte, uint32_t place) {
  const uint32_t y = byte * ternary_fraction * (place & 1 ? 3 : 1) * (place & 2 ? 9 : 1) * (place & 4 ? 81 : 1);
  return (y >= ternary_third ? 1u : 0u) + (y >= ternary_thirds ? 1u : 0u);
}

// For vectors of `lanes` outputs: of output i of 5 · lanes, its byte and its factor.
template <size_t lanes>
struct ternary_places {
  alignas(64) uint32_t byte[ternary_group * lanes], factor[ternary_group * lanes];

  constexpr ternary_places() : byte{}, factor{} {
    for (uint32_t i = 0; i < ternary_group * lanes; ++i) {
      byte[i] = 0x80808000 | i / ternary_group;  // a byte's place; the three others of a lane become 0
      factor[i] = ternary_fraction;
      for (uint32_t k = 0; k < i % ternary_group; ++k) factor[i] *= 3;
    }
  }
};

}  // namespace dr
