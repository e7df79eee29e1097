// The cosine transform of tiles: its definition, its bits, and which coefficient is where.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "dct/dct.hpp"
#include "dct/dct_kernel.hpp"
#include "dct/tiles.hpp"
#include "transform/normal_values.hpp"

namespace {

using floats = std::vector<float>;

std::vector<uint32_t> bits_of(const floats& x) {
  std::vector<uint32_t> out;
  for (const float v : x) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

double energy(const floats& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * double{v};
  return sum;
}

dr::tile_form form_of(uint32_t size, uint32_t columns) {
  return {dr::tile_kind::cosines, static_cast<uint8_t>(std::countr_zero(size)), columns};
}

floats forward(const dr::tile_form& form, const floats& x, dr::cpu_level level = dr::cpu(), uint32_t workers = 1) {
  floats out(x.size(), -9);
  dr::pool crew(workers);
  dr::to_coefficients(form, x.data(), x.size(), out.data(), crew, level);
  return out;
}

floats inverse(const dr::tile_form& form, const floats& x, dr::cpu_level level = dr::cpu(), uint32_t workers = 1) {
  floats out(x.size(), -9);
  dr::pool crew(workers);
  dr::from_coefficients(
      form, x.data(), x.size(), crew,
      [](void* to, uint64_t first, const float* values, uint32_t n) {
        std::copy_n(values, n, static_cast<float*>(to) + first);
      },
      out.data(), level);
  return out;
}

// The definition: coefficient k of n values.
double cosine_sum(const std::vector<double>& x, uint32_t k) {
  const double n = static_cast<double>(x.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += x[i] * std::cos(std::numbers::pi * k * (2 * static_cast<double>(i) + 1) / (2 * n));
  return sum * std::sqrt((k ? 2 : 1) / n);
}

struct shape {
  uint64_t rows;
  uint32_t columns;  // 0: a vector of `rows` elements
  uint32_t size;
  uint64_t elements() const { return columns ? rows * columns : rows; }
};
constexpr shape shapes[] = {{1, 0, 64},   {63, 0, 64},  {64, 0, 64},    {1024, 0, 64}, {5000, 0, 64},  {1000, 0, 2},
                            {77, 0, 16},  {64, 64, 64}, {128, 192, 64}, {70, 13, 8},   {200, 333, 64}, {5, 700, 64},
                            {700, 5, 32}, {33, 17, 16}, {31, 31, 32},   {3, 3, 2},     {65, 129, 64},  {127, 127, 64}};

}  // namespace

TEST_CASE("a cosine transform and its inverse are the identity within 1e-6, and preserve the energy") {
  for (const shape& s : shapes) {
    CAPTURE(s.rows);
    CAPTURE(s.columns);
    CAPTURE(s.size);
    const floats x = normal(s.elements(), 1);
    const dr::tile_form form = form_of(s.size, s.columns);
    const floats there = forward(form, x), back = inverse(form, there);
    CHECK(energy(there) == doctest::Approx(energy(x)).epsilon(1e-6));
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) error += std::pow(double{back[i]} - double{x[i]}, 2);
    CHECK(std::sqrt(error) <= 1e-6 * std::sqrt(energy(x)));
  }
}

TEST_CASE("coefficients and elements have the same bits with every instruction set and number of threads") {
  for (const shape& s : shapes)
    for (const bool hostile : {false, true}) {
      CAPTURE(s.rows);
      CAPTURE(s.columns);
      CAPTURE(s.size);
      floats x = normal(s.elements(), 2);
      if (hostile) {
        x[x.size() / 2] = -std::numeric_limits<float>::quiet_NaN();
        x[x.size() / 3] = std::numeric_limits<float>::infinity();
        x[x.size() - 1] = std::bit_cast<float>(0x7f800123u);
        x[0] = 3e38f;
      }
      const dr::tile_form form = form_of(s.size, s.columns);
      const auto there = bits_of(forward(form, x, dr::cpu_level::scalar)),
                 back = bits_of(inverse(form, x, dr::cpu_level::scalar));
      for (const dr::cpu_level level : dr::cpu_levels)
        if (dr::cpu_has(level)) {
          CHECK(bits_of(forward(form, x, level)) == there);
          CHECK(bits_of(inverse(form, x, level)) == back);
        }
      CHECK(bits_of(forward(form, x, dr::cpu(), 3)) == there);
      CHECK(bits_of(inverse(form, x, dr::cpu(), 3)) == back);
    }
}

TEST_CASE("a coefficient is the one of its definition, at its place") {
  for (const shape& s : {shape{70, 13, 8}, shape{20, 40, 16}, shape{45, 0, 16}, shape{64, 64, 64}}) {
    CAPTURE(s.rows);
    CAPTURE(s.columns);
    const floats x = normal(s.elements(), 3), found = forward(form_of(s.size, s.columns), x);
    const uint32_t columns = s.columns ? s.columns : static_cast<uint32_t>(s.rows);
    const dr::tile_grid grid(s.elements(), form_of(s.size, s.columns));
    std::vector<int> seen(x.size());
    for (uint64_t k = 0; k < grid.tiles(); ++k) {
      const dr::tile t = grid[k];
      std::vector<std::vector<double>> across;  // [row][v]
      for (uint32_t y = 0; y < t.rows.n; ++y) {
        std::vector<double> row, out;
        for (uint32_t c = 0; c < t.columns.n; ++c)
          row.push_back(double{x[(t.rows.first + y) * columns + t.columns.first + c]});
        for (uint32_t v = 0; v < t.columns.n; ++v) out.push_back(cosine_sum(row, v));
        across.push_back(out);
      }
      for (uint32_t v = 0; v < t.columns.n; ++v) {
        std::vector<double> column;
        for (uint32_t y = 0; y < t.rows.n; ++y) column.push_back(across[y][v]);
        for (uint32_t u = 0; u < t.rows.n; ++u) {
          const uint64_t at = t.at + uint64_t{v} * t.rows.n + u;
          ++seen[at];
          CHECK(double{found[at]} == doctest::Approx(cosine_sum(column, u)).epsilon(1e-5).scale(1));
        }
      }
    }
    CHECK(seen == std::vector<int>(x.size(), 1));
  }
}

TEST_CASE("whole tiles come first, so each is one chunk") {
  const dr::tile_grid grid(200 * 333, form_of(64, 333));
  uint64_t whole = 0;
  for (uint64_t k = 0; k < grid.tiles(); ++k) {
    const dr::tile t = grid[k];
    if (t.rows.n == 64 && t.columns.n == 64) CHECK(t.at == 4096 * whole++);
  }
  CHECK(whole == 15);
}

TEST_CASE("factors are the cosines, rounded once") {
  uint32_t at = 0;
  for (uint32_t m = 64; m > 1; m /= 2)
    for (uint32_t k = 0; k < m / 2; ++k)
      for (uint32_t i = 0; i < m / 2; ++i) {
        const long double exact =
            std::sqrt(2.0L / 64) * std::cos(std::numbers::pi_v<long double> * (2 * k + 1) * (2 * i + 1) / (2.0L * m));
        CHECK(dr::dct_factors<64>.of[at++] == static_cast<float>(exact));
      }
  CHECK(dr::dct_factors<64>.of[at] == 0.125f);
}
