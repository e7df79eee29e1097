#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "feedback/velocity.hpp"
#include "levels.hpp"

namespace dr {
namespace {

std::vector<float> drawn(uint64_t n, uint64_t seed) {
  std::mt19937_64 draw(seed);
  std::vector<float> out(n);
  for (float& x : out) {
    const uint64_t bits = draw();
    x = std::bit_cast<float>(
        static_cast<uint32_t>(bits % 32 == 0 ? bits >> 32 : (bits >> 32 & 0x83ffffff) | 0x3c000000));
  }
  return out;
}

// Also of nothing, where memcmp has no address to take.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

}  // namespace

TEST_CASE("velocity: every level corrects as scalar does, bit for bit, with and without undo, NaN too") {
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    each_fast_level([&](cpu_level level) {
      for (const uint64_t n : {0, 1, 7, 8, 9, 31, 1000, 1029})
        for (const int undo : {0, 1, 2}) {
          const std::vector<float> g = drawn(n, 1), v = drawn(n, 2), u = drawn(n, 3);
          const auto run = [&](cpu_level at) {
            // v, u, and the undo copies, which lie alike.
            const uint64_t each = (n + 16) / 16 * 16;
            std::vector<float> memory(4 * each + 16);
            float* const first = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4 % 16;
            float* const to[] = {first, first + each, first + 2 * each + 1, first + 3 * each + 1};
            std::copy(v.begin(), v.end(), to[0]);
            std::copy(u.begin(), u.end(), to[1]);
            correct_at(at, dtype)(g.data(), {to[0], to[1], undo ? to[2] : nullptr, undo ? to[3] : nullptr}, n, 0.9f,
                                  0.5f, undo == 2);
            fence_streams();
            std::vector<std::vector<float>> out;
            for (const float* part : to) out.emplace_back(part, part + n);
            return out;
          };
          const auto found = run(level), expected = run(cpu_level::scalar);
          for (int k = 0; k < 4; ++k) CHECK(same_bits(found[k], expected[k]));
          if (undo) CHECK(same_bits(found[2], v));
          if (undo) CHECK(same_bits(found[3], u));
        }
    });
}

TEST_CASE("velocity: by hand") {
  const float g[] = {2, -4, 0};
  float v[3], u[3];
  const auto correct = [&](cpu_level level) {
    std::fill_n(v, 3, 1.0f);
    std::fill_n(u, 3, 8.0f);
    correct_at(level, DR_F32)(g, {v, u, nullptr, nullptr}, 3, 0.5f, 0.25f, false);
    CHECK((u[0] == 4.5f && u[1] == 3 && u[2] == 4));
    CHECK((v[0] == 5.5f && v[1] == 4 && v[2] == 5));
  };
  correct(cpu_level::scalar);
  each_fast_level(correct);
  const uint32_t support[] = {11, 12};
  mask_sent(support, 2, 1, u, 10);
  CHECK((u[0] == 4.5f && u[1] == 0 && u[2] == 0));
  const float squares[] = {3, 4};
  CHECK(squares_of(DR_F32, squares, 2) == 25);
  float bad[] = {1, INFINITY, NAN};
  drop_unfinite(bad, 3);
  CHECK((bad[0] == 1 && bad[1] == 0 && bad[2] == 0));
}

}  // namespace dr
