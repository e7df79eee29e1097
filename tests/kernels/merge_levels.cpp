#include <vector>

#include "levels.hpp"
#include "merge/merge_values.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

// Every upper half of an f32's bits, and below it what decides a rounding to a type of 16 bits.
std::vector<uint32_t> all_roundings() {
  std::vector<uint32_t> out;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      out.push_back(upper << 16 | lower);
  return out;
}
template <class T>
std::vector<typename T::bits> all_of() {
  if constexpr (std::is_same_v<T, f32_type>) {
    return all_roundings();
  } else {
    std::vector<uint16_t> out(0x10000);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint16_t>(i);
    return out;
  }
}

// As the values, but in another order, and where they are f32 mostly of a like magnitude.
template <class T>
std::vector<typename T::bits> others_of(size_t n) {
  const auto all = all_of<T>();
  std::vector<typename T::bits> out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = draw(5, i) % 4 ? T::from_f64(1.0 / (1 + static_cast<double>(i % 999))) : all[draw(6, i) % all.size()];
  return out;
}

template <class From, class To>
void compare() {
  const auto values = all_of<From>();
  const auto before = others_of<To>(values.size());
  each_fast_level([&](cpu_level level) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{21}, values.size()})
      for (const size_t skip : {0, 1, 5}) {
        if (skip > n) continue;
        std::vector<typename To::bits> expected = before, found = before;
        const auto same = [&] {
          const bool all = expected == found;
          CAPTURE(n);
          CAPTURE(skip);
          CHECK(all);
        };
        for (const float weight : {1.0f, 0.125f, -3e38f, 0.0f}) {
          add_values_at<From, To>.scalar(values.data() + skip, n - skip, weight, expected.data() + skip);
          add_values_at<From, To>.at(level)(values.data() + skip, n - skip, weight, found.data() + skip);
          same();
        }
        convert_values_at<From, To>.scalar(values.data() + skip, n - skip, expected.data() + skip);
        convert_values_at<From, To>.at(level)(values.data() + skip, n - skip, found.data() + skip);
        same();
      }
  });
}

// Every third element or so, from some first one to some end.
template <class From, class To>
void compare_pairs() {
  const auto values = all_of<From>();
  const auto before = others_of<To>(3 * values.size());
  std::vector<uint32_t> support(values.size());
  for (size_t i = 0, at = 5; i < support.size(); ++i, at += 1 + draw(7, i) % 5) support[i] = static_cast<uint32_t>(at);
  each_fast_level([&](cpu_level level) {
    for (const uint64_t end : {uint64_t{5}, uint64_t{6}, uint64_t{1000}, uint64_t{3} * values.size()})
      for (const float weight : {1.0f, 0.125f, -3e38f}) {
        std::vector<typename To::bits> expected = before, found = before;
        const uint64_t a = add_pairs_at<From, To>.scalar(support.data(), values.data(), support.size(), weight, 5, end,
                                                         expected.data());
        const uint64_t b = add_pairs_at<From, To>.at(level)(support.data(), values.data(), support.size(), weight, 5,
                                                            end, found.data());
        const bool same = a == b && expected == found;
        CHECK(same);
      }
  });
}

}  // namespace

TEST_CASE("merge: every level adds pairs as scalar does, as far as they are below the end") {
  compare_pairs<f32_type, f32_type>();
  compare_pairs<f32_type, f16_type>();
  compare_pairs<f32_type, bf16_type>();
  compare_pairs<f16_type, f32_type>();
  compare_pairs<f16_type, f16_type>();
  compare_pairs<f16_type, bf16_type>();
  compare_pairs<bf16_type, f32_type>();
  compare_pairs<bf16_type, f16_type>();
  compare_pairs<bf16_type, bf16_type>();
}

TEST_CASE("merge: every level adds and converts values of all types as scalar does, NaN and infinities too") {
  compare<f32_type, f32_type>();
  compare<f32_type, f16_type>();
  compare<f32_type, bf16_type>();
  compare<f16_type, f32_type>();
  compare<f16_type, f16_type>();
  compare<f16_type, bf16_type>();
  compare<bf16_type, f32_type>();
  compare<bf16_type, f16_type>();
  compare<bf16_type, bf16_type>();
}

TEST_CASE("a number of f32 in a type of 16 bits is that of its f64, which is rounded once") {
  for (const uint32_t b : all_roundings()) {
    const float x = std::bit_cast<float>(b);
    const bool same = f32_to_f16(x) == f64_to_f16(exact_f64(x)) && f32_to_bf16(x) == f64_to_bf16(exact_f64(x));
    if (!same) FAIL_CHECK("bits ", b);
  }
}

}  // namespace dr
