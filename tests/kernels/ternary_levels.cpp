#include <numeric>
#include <random>
#include <vector>

#include "codecs/value/ternary/ternary_kernel.hpp"
#include "codecs/value/three_lc/three_lc_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

constexpr uint64_t counts[] = {1, 4, 5, 7, 8, 9, 16, 17, 39, 40, 41, 79, 80, 81, 255, 256, 257, 1024, 1025, 2560, 5003};

template <class T>
void compare_draws() {
  std::mt19937_64 s(4711);
  for (const uint64_t n : counts)
    for (int kind = 0; kind < 4; ++kind) {
      CAPTURE(n);
      CAPTURE(kind);
      std::vector<typename T::bits> values(n);
      for (auto& x : values) {
        const double u = static_cast<double>(s() >> 11) * 0x1p-52 - 1;
        x = kind == 0   ? T::from_f64(u * 1e-3)
            : kind == 1 ? static_cast<typename T::bits>(s() % T::infinity | (s() & 1) * (T::magnitude_mask + 1u))
            : kind == 2 ? T::from_f64(s() % 9 ? 0.25 : u)
                        : static_cast<typename T::bits>((s() & 1) * (T::magnitude_mask + 1u));
      }
      const uint64_t key = s(), first = s();
      const uint32_t largest = ternary_largest_scalar<T>(values.data(), n);
      uint32_t most = 0;
      const double squares = ternary_squares_scalar<T>(values.data(), n, most);
      CHECK(most == largest);
      const float scale = T::to_f32(ternary_scale<T>(largest, squares, n, 2.5));
      const uint32_t least = three_lc_least<T>(double{T::to_f32(static_cast<typename T::bits>(largest))} / 2);
      std::vector<uint8_t> drawn(n + ternary_digits_slack), nearest = drawn;
      ternary_draw_scalar<T>(values.data(), n, scale, key, first, drawn.data());
      three_lc_digits_scalar<T>(values.data(), n, least, nearest.data());
      each_fast_level([&](cpu_level level) {
        CHECK(ternary_largest<T>.at(level)(values.data(), n) == largest);
        uint32_t seen = 0;
        CHECK(ternary_squares<T>.at(level)(values.data(), n, seen) == squares);
        CHECK(seen == largest);
        std::vector<uint8_t> found(n + ternary_digits_slack);
        const auto same = [&](const std::vector<uint8_t>& expected) {
          return std::equal(found.begin(), found.begin() + static_cast<ptrdiff_t>(n), expected.begin());
        };
        ternary_draw<T>.at(level)(values.data(), n, scale, key, first, found.data());
        CHECK(same(drawn));
        three_lc_digits<T>.at(level)(values.data(), n, least, found.data());
        CHECK(same(nearest));
      });
    }
}

// Values at their limits, and beside: of the product of a draw and the scale the nearest f32, and those next to it. Scales
// down to where differences are no longer f32.
void compare_limits() {
  constexpr uint64_t key = 17, first = 5, n = 4096;
  for (const float scale :
       {0.7f, 0x1.fffffep0f, 0x1p-99f, 0x1.000002p-100f, 0x1.fffffep-101f, 0x1p-140f, 0x1.fffffep127f}) {
    std::vector<uint32_t> values(n);
    for (uint64_t i = 0; i < n; ++i) {
      const auto limit = static_cast<float>(unit_interval(draw(key, first + i)) * double{scale});
      values[i] = std::bit_cast<uint32_t>(limit);
      if (i % 3 == 1) ++values[i];
      if (i % 3 == 2 && values[i]) --values[i];
      values[i] |= static_cast<uint32_t>(i & 1) << 31;
    }
    std::vector<uint8_t> expected(n + ternary_digits_slack), found = expected;
    ternary_draw_scalar<f32_type>(values.data(), n, scale, key, first, expected.data());
    each_fast_level([&](cpu_level level) {
      ternary_draw<f32_type>.at(level)(values.data(), n, scale, key, first, found.data());
      CAPTURE(scale);
      CHECK(std::equal(found.begin(), found.begin() + n, expected.begin()));
    });
  }
}

template <class Bits>
void compare_unpacked(const std::vector<uint8_t>& bytes) {
  const Bits numbers[] = {0xbf80, 0, 0x3f80};
  for (uint64_t n = 0; n <= 5 * bytes.size(); n += n < 200 ? 1 : 131) {
    CAPTURE(n);
    std::vector<Bits> expected(n + 1, 77);
    ternary_unpack_scalar(bytes.data(), n, numbers, expected.data());
    each_fast_level([&](cpu_level level) {
      std::vector<Bits> found(n + 1, 77);
      ternary_unpack<Bits>.at(level)(bytes.data(), n, numbers, found.data());
      const bool same = found == expected;
      CHECK(same);
    });
  }
}

}  // namespace

TEST_CASE("ternary: a value at its limit is drawn as scalar draws it") { compare_limits(); }

TEST_CASE("ternary and three_lc: every level has scalar's scale and digits") {
  compare_draws<f32_type>();
  compare_draws<f16_type>();
  compare_draws<bf16_type>();
}

TEST_CASE("ternary: every level packs and unpacks the digits of every byte as scalar does") {
  std::vector<uint8_t> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 % (ternary_byte_max + 1));
  std::vector<uint8_t> digits(5 * bytes.size() + ternary_digits_slack, 0xee);
  const uint8_t identity[] = {0, 1, 2};
  for (size_t g = 0; g < bytes.size(); ++g)  // by division
    for (uint32_t k = 0, rest = bytes[g], power = 81; k < 5; ++k, rest %= power, power /= 3)
      digits[5 * g + k] = static_cast<uint8_t>(rest / power);
  std::vector<uint8_t> scalar(5 * bytes.size());
  ternary_unpack_scalar(bytes.data(), scalar.size(), identity, scalar.data());
  const bool digits_agree = std::equal(scalar.begin(), scalar.end(), digits.begin());
  CHECK(digits_agree);
  for (size_t groups = 0; groups <= bytes.size(); groups += groups < 100 ? 1 : 123) {
    CAPTURE(groups);
    std::vector<uint8_t> packed(groups + 1, 0xee);
    ternary_pack_scalar(digits.data(), groups, packed.data());
    bool same = packed.back() == 0xee && std::equal(packed.begin(), packed.end() - 1, bytes.begin());
    CHECK(same);
    each_fast_level([&](cpu_level level) {
      std::vector<uint8_t> found(groups + 1, 0xee);
      ternary_pack.at(level)(digits.data(), groups, found.data());
      same = found == packed;
      CHECK(same);
    });
  }
  compare_unpacked<uint32_t>(bytes);
  compare_unpacked<uint16_t>(bytes);
}

}  // namespace dr
