// Sparsifiers against std::sort.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "primitive/rng.hpp"
#include "sparsify/select.hpp"
#include "sparsify/sparsifier.hpp"

namespace {

// The definition: nonzero, by magnitude, ties by lower index.
std::vector<uint32_t> largest(const std::vector<uint32_t>& bits, uint64_t target) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < bits.size(); ++i)
    if (bits[i] & 0x7fffffff) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return (bits[a] & 0x7fffffff) > (bits[b] & 0x7fffffff); });
  order.resize(std::min<uint64_t>(order.size(), target));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<uint32_t> compact(const std::vector<uint32_t>& bits, dr::selection s) {
  std::vector<uint32_t> positions(bits.size());
  positions.resize(dr::compact_selected(DR_F32, bits.data(), bits.size(), s, positions.data()));
  return positions;
}

std::vector<std::vector<uint32_t>> inputs() {
  std::vector<std::vector<uint32_t>> all{{}, {0}, {0x80000000}, {1}, {0x3f800000}};
  std::vector<uint32_t> random(3000), few(3000), constant(3000, 0xbf800000), odd(3000, 0);
  for (size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<uint32_t>(dr::draw(1, i));  // NaN and infinities among them
    few[i] = dr::draw(2, i) % 3 ? 0x3f800000 + static_cast<uint32_t>(dr::draw(3, i) % 3)
                                : static_cast<uint32_t>(i % 2) << 31;
    if (i % 100 == 7) odd[i] = static_cast<uint32_t>(i);
  }
  for (auto v : {random, few, constant, odd}) all.push_back(std::move(v));
  return all;
}

}  // namespace

TEST_CASE("topr keeps exactly the largest, ties by lower index, never zeros") {
  for (const auto& bits : inputs())
    for (const uint64_t target : {uint64_t{1}, uint64_t{2}, uint64_t{29}, uint64_t{30}, uint64_t{31}, uint64_t{1500},
                                  uint64_t{2999}, uint64_t{3000}}) {
      const dr::selection s = dr::select_largest(DR_F32, bits.data(), bits.size(), target);
      const auto expected = largest(bits, target);
      CHECK(s.count == expected.size());
      CHECK(compact(bits, s) == expected);
    }
}

TEST_CASE("topr counts as defined") {
  CHECK(dr::share_target(0.01, 0, 36864) == 368);
  CHECK(dr::share_target(0.01, 0, 1) == 1);
  CHECK(dr::share_target(0.01, 0, 0) == 0);
  CHECK(dr::share_target(1, 0, 77) == 77);
  CHECK(dr::share_target(0.1, 0, 30) == 3);  // 0.1 · 30 is below 3 in binary
  CHECK(dr::share_target(0.3, 0, 10) == 3);
  CHECK(dr::share_target(0, 5, 3) == 3);
  CHECK(dr::share_target(0, 5, 100) == 5);
}

TEST_CASE("threshold keeps |v| >= value in every type, never zeros, and NaN") {
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    dr::with_value_type(dtype, [&](auto type) {
      using T = decltype(type);
      std::vector<typename T::bits> v(5000);
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<typename T::bits>(dr::draw(4, i) >> 7);
      for (const double threshold : {0.0, 1e-40, 1e-3, 0.1, 1.0, 65504.0, 1e30}) {
        std::vector<uint32_t> expected, positions(v.size());
        for (uint32_t i = 0; i < v.size(); ++i) {
          const double x = std::abs(double{T::to_f32(v[i])});
          if (std::isnan(x) || (x >= threshold && x != 0)) expected.push_back(i);
        }
        dr::selection s = dr::select_from(dtype, v.data(), v.size(), threshold);
        CHECK(s.count == expected.size());
        positions.resize(dr::compact_selected(dtype, v.data(), v.size(), s, positions.data()));
        CHECK(positions == expected);
      }
    });
}

TEST_CASE("a tensor selected as a whole may be compacted in segments") {
  const auto bits = inputs().back();
  for (const uint64_t target : {7, 20}) {
    dr::selection s = dr::select_largest(DR_F32, bits.data(), bits.size(), target);
    std::vector<uint32_t> joined, part(bits.size());
    for (size_t first = 0; first < bits.size(); first += 777) {
      const uint64_t n =
          dr::compact_selected(DR_F32, bits.data() + first, std::min<size_t>(777, bits.size() - first), s, part.data());
      for (uint64_t i = 0; i < n; ++i) joined.push_back(static_cast<uint32_t>(first) + part[i]);
    }
    CHECK(joined == largest(bits, target));
  }
}

TEST_CASE("rows are kept unless all their values are zeros, of either sign") {
  const std::vector<float> v{0, 0, 0, 0, -0.0f, 0, 1, -0.0f, 0, 0};
  uint32_t positions[5];
  CHECK(dr::compact_rows(DR_F32, v.data(), 5, 2, positions) == 1);
  CHECK(positions[0] == 3);
}
