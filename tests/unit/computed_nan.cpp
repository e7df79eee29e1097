// Which NaN arithmetic gives depends on the processor and on the order of operands. Ours gives one.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/host_device.hpp"
#include "feedback/residual.hpp"
#include "merge/merge.hpp"
#include "primitive/rng.hpp"
#include "split/split.hpp"

namespace {

using namespace dr;

constexpr uint32_t patterns[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0xffffffff, 0x7f800001, 0xff812345,
                                 0x7f800000, 0xff800000, 0x00000000, 0x80000000, 0x3f800000, 0xbfc00000,
                                 0x7f7fffff, 0xff7fffff, 0x00000001, 0x42280000};

// A bit pattern of T that is about such an f32.
template <class T>
typename T::bits like(uint32_t f32) {
  const float v = std::bit_cast<float>(f32);
  return std::isfinite(v) ? T::from_f64(saturate<T>(double{v})) : T::from_f64(exact_f64(v));
}

// Every pattern beside every other, n of them; the shift moves them among lanes of vectors.
template <class T>
std::vector<typename T::bits> numbers(size_t n, size_t stride) {
  std::vector<typename T::bits> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = like<T>(patterns[i / stride % std::size(patterns)]);
  return out;
}

// What plain arithmetic gives, but for which NaN.
uint32_t one_nan(float x) { return std::isnan(x) ? 0x7fc00000 : std::bit_cast<uint32_t>(x); }
template <class T>
typename T::bits rounded(float x) {
  return std::isnan(x) ? static_cast<typename T::bits>(sizeof(typename T::bits) == 4       ? 0x7fc00000
                                                       : T::infinity == f16_type::infinity ? 0x7e00
                                                                                           : 0x7fc0)
                       : T::from_f64(double{x});
}

template <class F>
void with_types(F&& f) {
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16}) with_value_type(dtype, [&](auto type) { f(dtype, type); });
}

constexpr size_t n = 16 * 16 + 5;

}  // namespace

TEST_CASE("feedback: a NaN that is computed is 0x7fc00000, at every level of instructions") {
  with_types([](uint32_t dtype, auto type) {
    using T = decltype(type);
    const auto g = numbers<T>(n, 1);
    const auto bits = numbers<f32_type>(n, 16);
    for (const auto& [beta, gamma] : {std::pair{1.0f, 1.0f}, std::pair{0.5f, -2.0f}, std::pair{0.0f, 0.0f},
                                      std::pair{std::numeric_limits<float>::quiet_NaN(), 1.0f}})
      for (const cpu_level level : cpu_levels) {
        if (level > cpu()) continue;
        std::vector<float> m(n), undo(n + 8), acc(n);
        std::memcpy(m.data(), bits.data(), 4 * n);
        const std::vector<float> before = m;
        advance_at(level, dtype)(g.data(), m.data(), n, beta, gamma, undo.data(), false);
        accumulate(dtype, g.data(), nullptr, 0, 1, beta, gamma, before.data(), n, acc.data());
        CHECK(std::memcmp(undo.data(), bits.data(), 4 * n) == 0);
        for (size_t i = 0; i < n; ++i) {
          const uint32_t want = one_nan(gamma * T::to_f32(g[i]) + beta * before[i]);
          CAPTURE(i);
          REQUIRE(std::bit_cast<uint32_t>(m[i]) == want);
          REQUIRE(std::bit_cast<uint32_t>(acc[i]) == want);
        }
      }
  });
}

TEST_CASE("feedback of a sparse tensor: what is added, and what is only multiplied") {
  with_types([](uint32_t dtype, auto type) {
    using T = decltype(type);
    const auto g = numbers<T>(n / 2, 1);
    const auto bits = numbers<f32_type>(n, 3);
    std::vector<float> m(n), acc(n);
    std::memcpy(m.data(), bits.data(), 4 * n);
    std::vector<uint64_t> indices;
    for (size_t i = 0; i < g.size(); ++i) indices.push_back(2 * i);
    accumulate(dtype, g.data(), indices.data(), g.size(), 1, 0.9f, -1.0f, m.data(), n, acc.data());
    for (size_t i = 0; i < n; ++i) {
      const float kept = 0.9f * m[i];
      const bool there = i % 2 == 0 && i / 2 < g.size();
      REQUIRE(std::bit_cast<uint32_t>(acc[i]) == one_nan(there ? kept + -1.0f * T::to_f32(g[i / 2]) : kept));
    }
  });
}

TEST_CASE("merge: a NaN that is computed is one of its type, and one that is converted keeps its payload") {
  with_types([](uint32_t from_type, auto from) {
    with_types([&](uint32_t to_type, auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const auto values = numbers<From>(n, 1);
      const auto before = numbers<To>(n, 16);
      std::vector<uint32_t> support(n);
      for (uint32_t i = 0; i < n; ++i) support[i] = i;
      for (const float weight : {1.0f, -0.5f, 0.0f, std::numeric_limits<float>::infinity()})
        for (const uint32_t* const s :
             {static_cast<const uint32_t*>(nullptr), static_cast<const uint32_t*>(support.data())}) {
          auto sums = before, pieces = before;
          scatter_add(from_type, s, values.data(), n, 1, weight, to_type, sums.data());
          if (s) {
            pair_sink sink{};
            sink.from_type = from_type;
            sink.to_type = to_type;
            sink.width = 1;
            sink.weight = weight;
            sink.adds = true;
            put_pairs(sink, s, values.data(), n, 0, n, pieces.data());
            CHECK(pieces == sums);
          }
          for (size_t i = 0; i < n; ++i) {
            const float term = weight * From::to_f32(values[i]);
            CAPTURE(i);
            REQUIRE(sums[i] == rounded<To>(To::to_f32(before[i]) + term));
          }
        }
      std::vector<typename To::bits> out(n);
      convert(from_type, values.data(), n, to_type, out.data());
      for (size_t i = 0; i < n; ++i) {
        if (from_type == to_type) REQUIRE(out[i] == values[i]);
        if (to_type != DR_F32 || from_type == DR_F32) continue;
        const unsigned moved = from_type == DR_F16 ? 13 : 16;
        if (magnitude<From>(values[i]) <= From::infinity) continue;
        const uint32_t kept = static_cast<uint32_t>(values[i] & (From::magnitude_mask & ~From::infinity)) << moved;
        REQUIRE(out[i] == (uint32_t{values[i]} >> 15 << 31 | 0x7f800000 | kept));
      }
    });
  });
}

TEST_CASE("what is finite stays finite when it is rounded: as by way of f64") {
  const auto check = [](auto type, uint32_t bits) {
    using T = decltype(type);
    const float x = std::bit_cast<float>(bits);
    const double wide = exact_f64(x);
    REQUIRE_MESSAGE(rounded_finite<T>(x) == T::from_f64(std::isfinite(x) ? saturate<T>(wide) : wide), bits);
  };
  const auto check_both = [&](uint32_t bits) {
    check(f16_type{}, bits);
    check(bf16_type{}, bits);
  };
  for (const uint32_t p : patterns) check_both(p);
  // Beside every power of two and every half of a last bit; and everywhere.
  for (uint64_t top = 0; top < 1u << 16; ++top)
    for (const uint32_t low : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      check_both(static_cast<uint32_t>(top << 16 | low));
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 8191) check_both(static_cast<uint32_t>(bits));
}

TEST_CASE("a sum of duplicates of a sparse tensor is computed, a value that comes once is copied") {
  const uint32_t values[] = {0xffc00001, 0x3f800000, 0xff812345, 0x7f800000, 0xff800000};
  const sparse_entry entries[] = {{0, 0}, {0, 1}, {1, 2}, {2, 3}, {2, 4}};
  uint64_t indices[5];
  uint32_t out[5];
  REQUIRE(gather_entries(DR_F32, DR_F32, 1, values, entries, 5, indices, out) == 3);
  CHECK(out[0] == 0x7fc00000);
  CHECK(out[1] == 0xff812345);
  CHECK(out[2] == 0x7fc00000);
}
