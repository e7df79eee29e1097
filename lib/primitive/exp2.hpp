// Powers and logarithms of two that are the same everywhere. (Those of libm differ between machines, so they must not
// decide a byte or a decoded value.) IEEE double, in the order written, without contraction, round to
// nearest.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

inline constexpr double exp2_range = 1020;

// 2^x for |x| <= exp2_range, to a relative error of 2^-51: the series of e^(f ln 2), |f| <= 1/2, in Horner's form.
//   Truncation after f^13: less than 0.3466^14 / 14! < 2^-57 of the sum, which is above 0.7.
//   Roundings: a step s = c + f s' makes two; s' is weighed by |f| <= 1/2, and s' < 0.7 s for every step, so those of
//   all steps together are below 2^-53 (1 + 0.35 (2 + 0.35 (2 + …))) < 2.1 · 2^-53 of the largest; constants add less
//   than half of that.
// Exact for integers.
DR_HD inline double portable_exp2(double x) {
  // ln(2)^k / k!, rounded to nearest.
  constexpr double c[] = {1.0,
                          0x1.62e42fefa39efp-1,
                          0x1.ebfbdff82c58fp-3,
                          0x1.c6b08d704a0c0p-5,
                          0x1.3b2ab6fba4e77p-7,
                          0x1.5d87fe78a6731p-10,
                          0x1.430912f86c787p-13,
                          0x1.ffcbfc588b0c7p-17,
                          0x1.62c0223a5c824p-20,
                          0x1.b5253d395e7c4p-24,
                          0x1.e4cf5158b8ecap-28,
                          0x1.e8cac7351bb25p-32,
                          0x1.c3bd650fc2986p-36,
                          0x1.816193166d0f9p-40};
  constexpr double shift = 0x1.8p52;  // adding it rounds to an integer, ties to even
  const double whole = (x + shift) - shift, f = x - whole;
  double sum = c[13];
  for (int k = 12; k >= 0; --k) sum = c[k] + f * sum;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(whole) + 1023) << 52);
}

// log2 of a normal, positive, finite x, to an error of 2^-50 + 2^-52 |log2 x|: with x = 2^e m, m in [3/4, 3/2), and
// s = (m - 1) / (m + 1), |s| <= 1/5, it is e + (2 / ln 2) (s + s^3 / 3 + s^5 / 5 + …), truncated after s^23.
DR_HD inline double portable_log2(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffff) | 0x3ff0000000000000);
  if (m >= 1.5) {
    m = m * 0.5;
    ++e;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 1.0 / 23;
  for (int k = 21; k >= 1; k -= 2) sum = 1.0 / k + square * sum;
  return static_cast<double>(e) + 0x1.71547652b82fep+1 * (s * sum);
}

}  // namespace dr
