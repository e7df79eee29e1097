// What codecs use that `deepreduce codec` made of a text (docs/LANGUAGE.md): arithmetic with one result on CPU and GPU,
// packed fields of a payload, and the operations of a codec around them.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "codecs/family/language/drc_vectors.hpp"
#include "codecs/family/ternary/ternary_digits.hpp"
#include "deepreduce/codec.hpp"
#include "deepreduce/version.h"
#include "primitive/packing.hpp"
#include "primitive/rng.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

#define DRC_BOTH DR_HD __attribute__((always_inline)) inline

namespace dr::lang {

// ---- Arithmetic ------------------------------------------------------------------------------------------

template <unsigned k, class N>
DRC_BOTH N power(N x) {
  N y = x;
  for (unsigned i = 1; i < k; ++i) y = y * x;
  return y;
}
// The second one where one of them is no number.
template <class N>
DRC_BOTH N lesser(N a, N b) {
  return a < b ? a : b;
}
template <class N>
DRC_BOTH N greater(N a, N b) {
  return a > b ? a : b;
}
DRC_BOTH float magnitude_of(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffff); }
DRC_BOTH double magnitude_of(double x) { return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~uint64_t{0} >> 1); }
template <class N>
DRC_BOTH N magnitude_of(N x) {
  return x < 0 ? static_cast<N>(N{0} - x) : x;
}
DRC_BOTH float root(float x) {
#if defined(__CUDA_ARCH__)
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}
DRC_BOTH double root(double x) {
#if defined(__CUDA_ARCH__)
  return sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}
// 2^e, -1022 to 1023.
DRC_BOTH double power_of_2(int32_t e) {
  return std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(e) + 1023) << 52);
}
DRC_BOTH int32_t magnitude_bits(float x) { return static_cast<int32_t>(std::bit_cast<uint32_t>(x) & 0x7fffffff); }

// To what int32_t holds; what is no number to the least.
DRC_BOTH float within_32(float x) { return lesser(greater(x, -2147483648.0f), 2147483520.0f); }
DRC_BOTH double within_32(double x) { return lesser(greater(x, -2147483648.0), 2147483647.0); }
// The same of a number that is not below 0; what is none to the most. (Numbers are in the order of their bits.)
DRC_BOTH float within_31(float x) {
  const int32_t b = magnitude_bits(x), most = std::bit_cast<int32_t>(2147483520.0f);
  return std::bit_cast<float>(b < most ? b : most);
}
DRC_BOTH double within_31(double x) {
  const auto b = std::bit_cast<int64_t>(x) & 0x7fffffffffffffff, most = std::bit_cast<int64_t>(2147483647.0);
  return std::bit_cast<double>(b < most ? b : most);
}
template <class F>
DRC_BOTH int32_t floor_up(F x) {  // x >= 0
  return static_cast<int32_t>(x);
}
template <class F>
DRC_BOTH int32_t floor(F x) {
  const auto whole = static_cast<int32_t>(x);
  return whole - (static_cast<F>(whole) > x);
}
DRC_BOTH int32_t round(double x) {  // to the nearest, ties to even
  const double whole = (x + 0x1.8p52) - 0x1.8p52;
  return static_cast<int32_t>(whole);
}
DRC_BOTH int32_t round(float x) { return round(static_cast<double>(x)); }

// Quotients a / b as a division rounds them, for many a and one b >= 0 that has at most 40 bits, while |a| is 0 or between
// 2^-600 and 2^600: q = a y, y = 1 / b rounded, is within 1.5 ulp of a / b; q b - a is exact; and q - (q b - a) y differs
// from a / b by less than 2^-104 of it, before it is rounded. No midpoint of f64 is that near: it has 54 bits, its product
// with b is another multiple of some 2^s than a, so it is 2^-95 away or more, or a / b itself, which has too few bits to be
// one. (0 keeps its sign: `correction` is -y, since of -off, the negative of an fma, gcc makes an fma of negatives, and
// of -0 and +0 that is the other zero.) For b = 0 and infinity q is the quotient.
template <bool wide>
struct divisor {
  double by, inverse, safe, correction;
  bool special;

  DRC_BOTH explicit divisor(double b) : by(b), inverse(1 / b), safe(b), correction(-inverse), special(false) {
    if (b > 0 && b <= DBL_MAX) return;
    special = true;
    safe = 1;
    correction = -0.0;
  }
};
template <bool wide>
DRC_BOTH double over(double a, const divisor<wide>& d) {
#if !defined(__CUDA_ARCH__)
  if constexpr (wide) {
    const double q = a * d.inverse, known = d.special ? 0 : q;
    const double off = __builtin_fma(known, d.safe, -a);
    return __builtin_fma(off, d.correction, q);
  }
#endif
  return a / d.by;
}

// Quotients a k / d in f32, a >= 0 an f32, k and d whole, k <= d <= 2^20, rounded as those in f64 are, rounded to f32 after.
// With a / d = high + low, k high + k low rounded once, the error before that is below 2^-46 of the number. A midpoint of
// f32 that is not the number itself is 2^-45 or more away (a multiple of a's last place over 2^25 d), and the number itself
// is one only if d, an odd prime or a power of two, divides a's 24 bits: then low is 0. (If d divides k, the number is a.)
// Of an a that is not tiny nothing is below f32's exponents.
inline bool f32_rounds(int64_t d) {
  if ((d & (d - 1)) == 0) return true;
  for (int64_t k = 2; k * k <= d; ++k)
    if (d % k == 0) return false;
  return d <= 1 << 20;
}
template <class T, bool wide>
struct step {
  float high = 0, low = 0;
  bool rounds = false;

  DRC_BOTH step([[maybe_unused]] float a, [[maybe_unused]] int64_t d, [[maybe_unused]] bool f32_rounds) {
    if constexpr (wide && std::is_same_v<T, f32_type>) {
      const double each = static_cast<double>(a) / static_cast<double>(d);
      high = static_cast<float>(each);
      low = static_cast<float>(each - static_cast<double>(high));
      rounds = f32_rounds && (a == 0 || a >= 0x1p-60f);
    }
  }
};
template <class T, bool wide>
DRC_BOTH float over(int32_t k, const step<T, wide>& s) {
  const auto x = static_cast<float>(k);
  return __builtin_fmaf(x, s.high, x * s.low);
}

// A number as the tensor's type has it; finite numbers stay finite.
template <class T>
DRC_BOTH float to_type(double x) {
  return T::to_f32(T::from_f64(saturate<T>(x)));
}
template <class T>
DRC_BOTH float to_type(float x) {
  return T::to_f32(T::from_f64(saturate<T>(static_cast<double>(x))));
}
// What decode returns: finite, and what is no number the least one of the type.
enum known { any, number, up };  // it is a number, it is one that is not below 0
template <class T, known is, class F>
DRC_BOTH typename T::bits returned(F x) {
  if constexpr (std::is_same_v<F, float>)
    if constexpr (is == up) {  // (in the order of their bits, but for -0, which is below all)
      const auto b = std::bit_cast<int32_t>(x);
      return rounded_finite<T>(std::bit_cast<float>(b < 0x7f7fffff ? b : 0x7f7fffff));
    } else if constexpr (is == number) {
      const uint32_t b = std::bit_cast<uint32_t>(x), m = b & 0x7fffffff;
      return rounded_finite<T>(std::bit_cast<float>((m < 0x7f7fffff ? m : 0x7f7fffff) | (b & 0x80000000)));
    } else {
      return rounded_finite<T>(lesser(greater(x, -FLT_MAX), FLT_MAX));
    }
  else if constexpr (std::is_same_v<T, f32_type>)  // (rounded first: in f32 the limits are those of f64)
    return returned<T, is>(static_cast<float>(x));
  else
    return T::from_f64(lesser(greater(x, -T::largest), T::largest));
}
// Another sign, where `sign`, 0 or that of an f32, is not 0.
template <class T>
DRC_BOTH typename T::bits flipped(typename T::bits b, uint32_t sign) {
  return static_cast<typename T::bits>(b ^ (sign >> (32 - 8 * sizeof b)));
}
// The same of a number that is finite in f32.
template <class T>
DRC_BOTH typename T::bits returned_finite(float x) {
  return rounded_finite<T>(x);
}
template <class T>
DRC_BOTH typename T::bits returned_finite(double x) {
  if constexpr (std::is_same_v<T, f32_type>)
    return std::bit_cast<uint32_t>(static_cast<float>(x));
  else
    return returned<T, number>(x);
}

// Numbers as integers in their order, -0 below +0. What is no number is -inf for `largest`, inf for `smallest`.
DRC_BOTH int32_t in_order(float x) {
  const auto b = std::bit_cast<int32_t>(x);
  return b ^ ((b >> 31) & 0x7fffffff);
}
DRC_BOTH int64_t in_order(double x) {
  const auto b = std::bit_cast<int64_t>(x);
  return b ^ ((b >> 63) & 0x7fffffffffffffff);
}
DRC_BOTH float of_order(int32_t x) { return std::bit_cast<float>(x ^ ((x >> 31) & 0x7fffffff)); }
DRC_BOTH double of_order(int64_t x) { return std::bit_cast<double>(x ^ ((x >> 63) & 0x7fffffffffffffff)); }
template <class F>
DRC_BOTH F or_else(F x, F other) {
  return x == x ? x : other;
}

// A number that goes into an f32 of the payload: -0 is sent as 0 where the field begins there.
DRC_BOTH bool beyond(float x, float low, float high) {
  return !(x >= low && x <= high) || (low >= 0 && std::bit_cast<uint32_t>(x) == 0x80000000);
}

// ---- Loops of the CPU ------------------------------------------------------------------------------------

inline constexpr uint64_t values_most = uint64_t{1} << 40;

struct verdict {
  const char* what = nullptr;
  uint64_t where = 0, found = 0;
};

using half_word [[gnu::may_alias]] = uint32_t;

// n of two numbers, by bits.
template <class B>
DRC_BOTH void unpack_two(const uint8_t* in, uint64_t n, const B* kinds, B* __restrict out) {
  const B zero = kinds[0], one = kinds[1];
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const auto word = load<uint32_t>(in + i / 8);
    for (uint32_t k = 0; k < 32; ++k) out[i + k] = (word >> k & 1) ? one : zero;
  }
  for (; i < n; ++i) out[i] = (in[i / 8] >> i % 8 & 1) ? one : zero;
}

// The sum of a tile by sum_tree's order: of `length` numbers in memory for 1024.
DRC_BOTH double tile_sum(double* tile, uint64_t length) {
  uint64_t padded = bit_ceil(length);
  for (uint64_t i = length; i < padded; ++i) tile[i] = 0;
  for (; padded > 64; padded /= 2)
    for (uint64_t i = 0; i < padded / 2; ++i) tile[i] += tile[i + padded / 2];
  for (; padded < 64; padded *= 2)
    for (uint64_t i = padded; i < 2 * padded; ++i) tile[i] = 0;  // zeros more change no sum
  for (uint64_t i = 0; i < 32; ++i) tile[i] += tile[i + 32];
  for (uint64_t i = 0; i < 16; ++i) tile[i] += tile[i + 16];
  for (uint64_t i = 0; i < 8; ++i) tile[i] += tile[i + 8];
  for (uint64_t i = 0; i < 4; ++i) tile[i] += tile[i + 4];
  return (tile[0] + tile[2]) + (tile[1] + tile[3]);
}

// The upper 24 bits of the draws first, first + 1, …: mix64 without its last step, which changes lower bits.
DRC_BOTH void draw_24(uint64_t key, uint64_t first, uint64_t length, uint32_t* to) {
  uint64_t counter = key + (first + 1) * golden;
  for (uint64_t i = 0; i < length; ++i, counter += golden) {
    uint64_t x = (counter ^ (counter >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    to[i] = static_cast<uint32_t>(x >> 40);
  }
}
// Halves of draws, the lower one first: words of the positions from `even` on.
DRC_BOTH void draw_halves(uint64_t key, uint64_t even, uint64_t length, uint64_t* to) {
  uint64_t x = key + (even / 2 + 1) * golden;
  for (uint64_t i = 0; i < ceil_div(length, 2); ++i, x += golden) to[i] = mix64(x);
}
// Of one position.
DRC_BOTH uint32_t drawn_24(uint64_t key, uint64_t i) { return static_cast<uint32_t>(draw(key, i) >> 40); }
DRC_BOTH uint32_t drawn_half(uint64_t key, uint64_t i) { return static_cast<uint32_t>(draw(key, i / 2) >> i % 2 * 32); }
DRC_BOTH double unit_24(uint32_t drawn) { return static_cast<double>(static_cast<int32_t>(drawn)) * 0x1p-24; }
DRC_BOTH uint64_t key_of(uint64_t key, uint64_t which) { return which ? combine(key, which) : key; }

// ---- Positions of some values ----

// Of a block's ones, which 64 more bytes may follow, the bits.
inline void pack_ones(uint8_t* ones, uint64_t length, uint8_t* out) {
  const uint64_t whole = length & ~uint64_t{63};
  pack_bytes.best()(ones, whole, out);
  if (whole == length) return;
  uint8_t last[8];
  std::memset(ones + length, 0, 64);
  pack_bytes.best()(ones + whole, length - whole, last);
  std::memcpy(out + whole / 8, last, ceil_div(length - whole, 8));
}

// ---- The k-th largest number ----

// How many are larger.
inline uint64_t rank_of(uint64_t n, int64_t k) { return k < 1 ? 0 : std::min(static_cast<uint64_t>(k), n) - 1; }

// Some of n keys, which tell a number that more than `rank` of them are likely to reach.
struct sample {
  static constexpr uint64_t most = 2048;
  int32_t keys[most];
  uint64_t count, step, index;

  sample(uint64_t n, uint64_t rank) : count(n < 32 * most ? 0 : most), step((n / most - 1) | 1), index(0) {
    const double share = static_cast<double>(rank) / static_cast<double>(n) * most;
    index = static_cast<uint64_t>(share + 3 * std::sqrt(share)) + 3;
  }
  // Every time a lower one, at last 0.
  int32_t lower() {
    if (index >= count) return 0;
    std::nth_element(keys, keys + index, keys + count, std::greater<>());
    const int32_t key = keys[index];
    index = 4 * index + 16;
    return key;
  }
};

// Of n keys that are not negative, the one that `rank` are larger than, of equal ones any. Moves them.
DRC_BOTH int32_t ranked(int32_t* keys, uint64_t n, uint64_t rank) {
  constexpr unsigned bins_bits = 10;
  while (n > 256) {
    int32_t least = INT32_MAX, most = 0;
    for (uint64_t i = 0; i < n; ++i) {
      least = lesser(least, keys[i]);
      most = greater(most, keys[i]);
    }
    const unsigned bits = bit_width(static_cast<uint64_t>(most - least)),
                   shift = bits < bins_bits ? 0 : bits - bins_bits;
    if (bits == 0) return least;
    uint64_t counts[1 << bins_bits] = {}, kept = 0;
    for (uint64_t i = 0; i < n; ++i) ++counts[(keys[i] - least) >> shift];
    int32_t bin = (most - least) >> shift;
    for (; rank >= counts[bin]; --bin) rank -= counts[bin];
    for (uint64_t i = 0; i < n; ++i) {
      const int32_t key = keys[i];
      keys[kept] = key;
      kept += (key - least) >> shift == bin;
    }
    n = kept;
  }
  std::nth_element(keys, keys + rank, keys + n, std::greater<>());
  return keys[rank];
}

// ---- Digits ----------------------------------------------------------------------------------------------

template <uint32_t base>
inline constexpr uint32_t digits_a_byte = base == 3   ? 5
                                          : base <= 6 ? 3
                                                      : 2;
template <uint32_t base>
inline constexpr uint32_t digits_bytes = [] {  // how many bytes there are
  uint32_t product = 1;
  for (uint32_t k = 0; k < digits_a_byte<base>; ++k) product *= base;
  return product;
}();
template <uint32_t base>
DR_HD inline uint32_t digit_of(uint8_t byte, uint32_t place) {
  if constexpr (base == 3) return ternary_digit_by_fraction(byte, place);
  uint32_t rest = byte;
  for (; place + 1 < digits_a_byte<base>; ++place) rest /= base;
  return rest % base;
}

template <uint32_t base>
inline void pack_digits(uint8_t* digits, uint64_t length, uint8_t pad, uint8_t* out) {
  constexpr uint32_t k = digits_a_byte<base>;
  const uint64_t groups = ceil_div(length, k);
  for (uint64_t i = length; i < groups * k; ++i) digits[i] = pad;
  if constexpr (base == 3) return ternary_pack.best()(digits, groups, out);
  for (uint64_t g = 0; g < groups; ++g) {
    uint32_t byte = 0;
    for (uint32_t i = 0; i < k; ++i) byte = byte * base + digits[g * k + i];
    out[g] = static_cast<uint8_t>(byte);
  }
}
template <uint32_t base>
inline void unpack_digits(const uint8_t* in, uint64_t n, uint32_t* digits) {
  if constexpr (base == 3) {
    constexpr uint32_t numbers[] = {0, 1, 2};
    return ternary_unpack<uint32_t>.best()(in, n, numbers, digits);
  }
  for (uint64_t i = 0; i < n; ++i) digits[i] = digit_of<base>(in[i / digits_a_byte<base>], i % digits_a_byte<base>);
}
// Of n digits: the first byte that is none, or the last one's place where padding is not `pad`.
template <uint32_t base>
inline verdict check_digits(const uint8_t* in, uint64_t n, uint8_t pad, const char* what) {
  constexpr uint32_t k = digits_a_byte<base>;
  const uint64_t size = ceil_div(n, k);
  uint8_t largest = 0;
  for (uint64_t i = 0; i < size; ++i) largest = std::max(largest, in[i]);
  if (largest >= digits_bytes<base>) {
    uint64_t at = 0;
    while (in[at] < digits_bytes<base>) ++at;
    return {what, at, in[at]};
  }
  for (uint64_t i = n; i < size * k; ++i)
    if (digit_of<base>(in[size - 1], i % k) != pad) return {what, size - 1, in[size - 1]};
  return {};
}

// ---- Operations ------------------------------------------------------------------------------------------

// Bytes of n numbers of so many bits.
DR_HD inline uint64_t bits_size(uint64_t n, uint64_t bits) { return ceil_div(n * bits, 8); }

inline uint64_t values_of(const dr_job& job) { return dr_job_count(&job) * job.width; }

// False: more values than a job has.
inline bool fits(const dr_job& job) { return job.count_max == 0 || job.width <= values_most / job.count_max; }

inline constexpr uint8_t no_fault = 0;

}  // namespace dr::lang

// f_with, an always_inline template of the tensor's type, for every instruction set.
#if DR_X86
#if defined(__clang__)
#define DRC_WIDE
#else
#define DRC_WIDE ",prefer-vector-width=512"
#endif
#define DRC_TWINS(f, Args)                                                                                            \
  template <class T>                                                                                                  \
  lang::verdict f##_scalar(const Args& a) {                                                                           \
    return f##_with<T, false>(a);                                                                                     \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,f16c,fma"))) lang::verdict f##_avx2(const Args& a) {              \
    return f##_with<T, true>(a);                                                                                      \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,f16c,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl" DRC_WIDE))) \
  lang::verdict f##_avx512(const Args& a) {                                                                           \
    return f##_with<T, true>(a);                                                                                      \
  }                                                                                                                   \
  template <class T>                                                                                                  \
  constexpr cpu_table<decltype(&f##_scalar<T>)> f##_at{f##_scalar<T>, f##_avx2<T>, f##_avx512<T>};
#else
#define DRC_TWINS(f, Args)                  \
  template <class T>                        \
  lang::verdict f##_scalar(const Args& a) { \
    return f##_with<T, false>(a);           \
  }                                         \
  template <class T>                        \
  constexpr cpu_table<decltype(&f##_scalar<T>)> f##_at{f##_scalar<T>};
#endif
