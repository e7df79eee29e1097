// The fit of costs: max(floor, base + per_unit n), by relative least squares.
#include <doctest/doctest.h>

#include <cmath>
#include <span>
#include <vector>

#include "tool/calibrate/affine_fit.hpp"

using dr::calibrate::affine;
using dr::calibrate::fit_affine;
using dr::calibrate::sample;

namespace {

std::vector<sample> samples_of(auto&& cost,
                               std::vector<uint64_t> sizes = {1024, 4096, 16384, 65536, 262144, 1048576, 4194304}) {
  std::vector<sample> list;
  for (const uint64_t n : sizes) list.push_back({n, cost(static_cast<double>(n)), 0});
  return list;
}

}  // namespace

TEST_CASE("a line is found again") {
  const affine fit = fit_affine(samples_of([](double n) { return 2000 + 0.25 * n; }));
  CHECK(fit.base == doctest::Approx(2000));
  CHECK(fit.per_unit == doctest::Approx(0.25));
  CHECK(fit.floor == doctest::Approx(2000));
  CHECK(fit.r2 == doctest::Approx(1));
}

TEST_CASE("a floor is found where small sizes do not get cheaper") {
  const auto cost = [](double n) { return std::max(9000.0, -1000 + 1.5 * n); };
  const affine fit = fit_affine(samples_of(cost));
  CHECK(fit.floor == doctest::Approx(9000));
  CHECK(fit.base == doctest::Approx(-1000).epsilon(0.01));
  CHECK(fit.per_unit == doctest::Approx(1.5));
  for (const double n : {1.0, 2000.0, 7000.0, 1e6}) CHECK(fit.at(n) == doctest::Approx(cost(n)));
}

TEST_CASE("small sizes count as much as large ones") {
  // Half of all samples twice as dear. Least squares of absolute errors would follow the largest size alone, and miss the smallest by far.
  const affine fit = fit_affine(samples_of([](double n) { return 1000 + n * (n > 100000 ? 1.1 : 0.9); }));
  for (const sample& s : samples_of([](double n) { return 1000 + n; }))
    CHECK(fit.at(static_cast<double>(s.size)) == doctest::Approx(s.value).epsilon(0.15));
  CHECK(fit.r2 > 0.99);
  CHECK(fit.r2 < 1);
}

TEST_CASE("a small size that was disturbed does not lift the others") {
  std::vector<sample> samples = samples_of([](double n) { return 2000 + 0.25 * n; });
  samples[0].value *= 10;
  const affine fit = fit_affine(samples);
  for (const sample& s : std::span(samples).subspan(1))
    CHECK(fit.at(static_cast<double>(s.size)) == doctest::Approx(s.value).epsilon(0.1));
  CHECK(fit.r2 < 0.99);
}

TEST_CASE("what a busy machine leaves behind is reported, and nothing else") {
  dr::calibrate::disturbance busy;
  std::vector<sample> samples = samples_of([](double n) { return 2000 + 0.25 * n; });
  busy.add("encode of 'a'", fit_affine(samples), samples);
  samples[2].spread = 0.3;
  busy.add("encode of 'a'", fit_affine(samples), samples);
  CHECK(busy.note().empty());
  samples[2].spread = 0.5;
  busy.add("merge of 'a'", fit_affine(samples), samples);
  CHECK(busy.note() ==
        "quartiles are more than 30 % of the median apart in 1 of 21 samples (most 50 %: merge of 'a', 16384 elements)."
        " A machine that does nothing else gives better costs");
  affine poor = fit_affine(samples);
  poor.r2 = 0.5;
  busy.add("decode of 'b'", poor, {});
  CHECK(busy.note().starts_with("r2 is below 0.9 of 1 of 4 fits (least 0.50: decode of 'b'); quartiles"));
}

TEST_CASE("no rank of a sum has another's elements") {
  using dr::calibrate::growth_size;
  for (const uint64_t available : {8192u, 10000u, 1u << 20, 1u << 22}) {
    const uint64_t n = growth_size(available, 1 << 22);
    CHECK(n >= 1024);
    CHECK(8 * n <= available);
  }
  CHECK(growth_size(8191, 1 << 22) == 0);
  CHECK(growth_size(uint64_t{1} << 30, 1 << 22) == 1 << 18);
  CHECK(growth_size(uint64_t{1} << 30, 4096) == 4096);
  CHECK(growth_size(96, 12) == 12);  // requested sizes
  CHECK(growth_size(90, 12) == 0);
}

TEST_CASE("a cost never falls with size, and of one size it is in proportion for more") {
  const affine falling = fit_affine(samples_of([](double n) { return 5000 - n / 1000; }));
  CHECK(falling.per_unit == 0);
  CHECK(falling.at(1) > 0);
  const affine one = fit_affine(samples_of([](double) { return 700.0; }, {1024}));
  CHECK(one.at(1) == doctest::Approx(700));
  CHECK(one.at(1e9) == doctest::Approx(700 * 1e9 / 1024));
}
