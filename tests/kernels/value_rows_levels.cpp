#include <cmath>
#include <cstring>
#include <vector>

#include "levels.hpp"
#include "primitive/value_rows.hpp"

namespace dr {
namespace {

constexpr size_t many = 0x10000, ends[] = {0, 1, 7, 8, 9, 40, many};

// All bits of the type.
template <class T>
std::vector<typename T::bits> all_of() {
  std::vector<typename T::bits> out(many);
  for (size_t i = 0; i < many; ++i)  // of f32 the upper half
    out[i] = static_cast<typename T::bits>(sizeof(typename T::bits) == 4 ? i << 16 | (i & 1) : i);
  return out;
}

template <class T>
void compare_widened() {
  const auto values = all_of<T>();
  each_fast_level([&](cpu_level level) {
    for (const size_t n : ends) {
      std::vector<uint32_t> expected(n + 1, 77), found = expected;
      widen_values<T>.scalar(values.data(), n, expected.data());
      widen_values<T>.at(level)(values.data(), n, found.data());
      const bool same = expected == found;
      CHECK(same);
    }
  });
}

template <class T>
void compare_rounded() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < many; ++upper)
    for (const uint32_t lower : {0x0000u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  each_fast_level([&](cpu_level level) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{40}, values.size()}) {
      std::vector<uint8_t> expected(n * sizeof(typename T::bits) + 2, 0xee), found = expected;
      round_values_at<T>.scalar(values.data(), n, expected.data() + 1);
      round_values_at<T>.at(level)(values.data(), n, found.data() + 1);
      const bool same = expected == found;
      CHECK(same);
      std::vector<float> in_place(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n));
      round_values_at<T>.at(level)(in_place.data(), n, in_place.data());
      const bool same_in_place =
          n == 0 || std::memcmp(in_place.data(), expected.data() + 1, n * sizeof(typename T::bits)) == 0;
      CHECK(same_in_place);
    }
  });
}

}  // namespace

TEST_CASE("values of 16 bits: every level widens and rounds as scalar does, also in place") {
  compare_widened<f32_type>();
  compare_widened<f16_type>();
  compare_widened<bf16_type>();
  compare_rounded<f32_type>();
  compare_rounded<f16_type>();
  compare_rounded<bf16_type>();
}

TEST_CASE("every f16 is the number that its bits say") {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const double sign = h & 0x8000 ? -1 : 1, mantissa = h & 0x3ff;
    const int exponent = static_cast<int>(h >> 10 & 31);
    const float x = f16_to_f32(static_cast<uint16_t>(h));
    const bool same = exponent == 31  ? (mantissa != 0 ? x != x : static_cast<double>(x) == sign * INFINITY)
                      : exponent == 0 ? static_cast<double>(x) == sign * std::ldexp(mantissa, -24)
                                      : static_cast<double>(x) == sign * std::ldexp(1024 + mantissa, exponent - 25);
    if (!same || std::signbit(x) != (sign < 0)) FAIL_CHECK("bits ", h);
  }
}

}  // namespace dr
