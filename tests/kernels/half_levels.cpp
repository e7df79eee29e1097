#include <cmath>
#include <numeric>
#include <vector>

#include "codecs/value/half/half_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

// All counts from 0 to 40 elements, then all at once; a byte before and after, which must not change.
template <class From, class To>
void compare(const std::vector<typename From::bits>& numbers) {
  using to = typename To::bits;
  const auto* in = reinterpret_cast<const uint8_t*>(numbers.data());
  const cpu_table<half_function> table = half_table<From, To>;
  each_fast_level([&](cpu_level level) {
    std::vector<uint64_t> sizes{numbers.size()};
    for (uint64_t n = 0; n <= 40; ++n) sizes.push_back(n);
    for (const uint64_t n : sizes)
      for (const uint64_t skip : {0, 1, 5}) {
        if (skip > n) continue;
        std::vector<uint8_t> expected(sizeof(to) * n + 2, 0xee), found = expected;
        table.scalar(in + skip * sizeof(typename From::bits), n - skip, expected.data() + 1);
        table.at(level)(in + skip * sizeof(typename From::bits), n - skip, found.data() + 1);
        const bool same = expected == found;
        CAPTURE(n);
        CHECK(same);
      }
  });
}

// Every sign, finite exponent and upper mantissa; below it what decides a rounding to either type.
std::vector<uint32_t> all_roundings() {
  std::vector<uint32_t> out;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    if ((upper & 0x7f80) == 0x7f80) continue;
    for (const uint32_t lower :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu})
      out.push_back(upper << 16 | lower);
  }
  return out;
}
// All 2^16 of a type, and short ones: the numbers, and the largest magnitude of those that were read.
template <class From>
void compare_widening() {
  std::vector<uint16_t> numbers(0x10000);
  std::iota(numbers.begin(), numbers.end(), uint16_t{0});
  const auto judge = [](cpu_level level, const uint16_t* in, size_t n) {
    std::vector<float> expected(n + 1, -7), found = expected;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(in);
    const uint32_t most = half_widen<From>.scalar(bytes, n, expected.data());
    CHECK(half_widen<From>.at(level)(bytes, n, found.data()) == most);
    CHECK(most == std::transform_reduce(
                      in, in + n, uint32_t{0}, [](uint32_t a, uint32_t b) { return std::max(a, b); },
                      [](uint16_t b) { return magnitude<From>(b); }));
    for (size_t i = 0; i <= n; ++i) {
      // (Of a NaN that signals, an instruction makes one that does not.)
      const bool nan = i < n && magnitude<From>(in[i]) > From::infinity;
      const bool same = std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(found[i]);
      if (!(nan ? std::isnan(found[i]) : same)) FAIL_CHECK("number ", i, " of ", n);
    }
  };
  each_fast_level([&](cpu_level level) {
    judge(level, numbers.data(), numbers.size());
    for (size_t n = 0; n <= 40; ++n) judge(level, numbers.data() + 0x7be0, n);
  });
}

template <class T>
std::vector<uint16_t> all_finite() {
  std::vector<uint16_t> out;
  for (uint32_t i = 0; i < 0x10000; ++i)
    if (is_finite<T>(static_cast<uint16_t>(i))) out.push_back(static_cast<uint16_t>(i));
  return out;
}

}  // namespace

TEST_CASE("half: every level rounds and widens as scalar does") {
  compare<f32_type, f16_type>(all_roundings());
  compare<f32_type, bf16_type>(all_roundings());
  compare<f16_type, f16_type>(all_finite<f16_type>());
  compare<f16_type, bf16_type>(all_finite<f16_type>());
  compare<bf16_type, f16_type>(all_finite<bf16_type>());
  compare<bf16_type, bf16_type>(all_finite<bf16_type>());
  compare_widening<f16_type>();
  compare_widening<bf16_type>();
}

TEST_CASE("half: the first number that is not finite is found, and none where all are") {
  std::vector<uint16_t> numbers(1000, 0xfbff);
  const uint16_t* const in = numbers.data();
  CHECK(half_not_finite<f16_type>(in, 1000) == 1000);
  CHECK(half_not_finite<bf16_type>(in, 1000) == 1000);
  CHECK(half_not_finite<bf16_type>(in, 0) == 0);
  for (const size_t at : {999, 998, 517, 1, 0}) {
    numbers[at] = at % 2 ? 0x7c00 : 0xfe01;
    CHECK(half_not_finite<f16_type>(in, 1000) == at);
  }
}

}  // namespace dr
