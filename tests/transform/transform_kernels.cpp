// Every instruction set gives the same bits.
#include <doctest/doctest.h>

#include <vector>

#include "transform/lowrank_kernel.hpp"
#include "transform/normal_values.hpp"
#include "transform/orthonormal.hpp"

namespace {

using floats = std::vector<float>;

struct made {
  floats p, q, out, residual;
  bool operator==(const made&) const = default;
};

made compute(dr::cpu_level level, uint64_t rows, uint64_t columns, uint32_t rank, bool keeps) {
  const floats gradient = normal(rows * columns, 1), q = normal(rank * columns, 3);
  made m{floats(rows * rank), floats(rank * columns, 9.0f), floats(rows * columns), normal(rows * columns, 2)};
  const dr::lowrank_matrix x{gradient.data(), keeps ? m.residual.data() : nullptr, 0.75f, 1.25f, columns, rank};
  const dr::lowrank_kernels& k = dr::lowrank_at(level);
  k.project(x, q.data(), m.p.data(), 0, rows);
  k.gather(x, m.p.data(), rows, m.q.data(), 0, columns / 3);
  k.gather(x, m.p.data(), rows, m.q.data(), columns / 3, columns);
  k.expand(x, m.p.data(), m.q.data(), 2, m.out.data(), 0, rows);
  return m;
}

}  // namespace

TEST_CASE("factors, outputs and residuals have the same bits with every instruction set") {
  for (const uint64_t columns : {1u, 3u, 15u, 16u, 17u, 64u, 133u})
    for (const uint32_t rank : {1u, 2u, 3u, 4u, 5u, 9u})
      for (const bool keeps : {false, true}) {
        CAPTURE(columns);
        CAPTURE(rank);
        const made expected = compute(dr::cpu_level::scalar, 11, columns, rank, keeps);
        for (const dr::cpu_level level : dr::cpu_levels)
          if (dr::cpu_has(level)) CHECK(compute(level, 11, columns, rank, keeps) == expected);
      }
}

TEST_CASE("columns become orthonormal, also those that are zero, dependent or as large as f32 goes") {
  constexpr uint64_t n = 37;
  constexpr uint32_t r = 5;
  for (const float scale : {1.0f, 1e-44f, 1e38f})
    for (const char* what : {"any", "zero", "dependent", "all zero"}) {
      CAPTURE(std::string(what));
      CAPTURE(scale);
      floats a = normal(n * r, 4);
      for (float& x : a) x = std::string(what) == "all zero" ? 0 : x / 5 * scale;
      for (uint64_t i = 0; i < n; ++i) {
        if (std::string(what) == "zero") a[i * r + 2] = 0;
        if (std::string(what) == "dependent") a[i * r + 2] = a[i * r];
      }
      const floats was = a;
      std::vector<double> room(dr::orthonormal_scratch(n, r));
      dr::orthonormalise({a.data(), n, r, 1, r}, room.data());
      for (uint32_t c = 0; c < r; ++c)
        for (uint32_t d = 0; d <= c; ++d) {
          double dot = 0;
          for (uint64_t i = 0; i < n; ++i) dot += static_cast<double>(a[i * r + c]) * static_cast<double>(a[i * r + d]);
          CHECK(std::abs(dot - (c == d)) < 1e-6);
        }
      // What the columns spanned they still span.
      for (uint32_t c = 0; c < r; ++c) {
        std::vector<double> left(n);
        double norm = 0, rest = 0;
        for (uint64_t i = 0; i < n; ++i) left[i] = static_cast<double>(was[i * r + c]) / static_cast<double>(scale);
        for (const double x : left) norm += x * x;
        for (uint32_t d = 0; d < r; ++d) {
          double dot = 0;
          for (uint64_t i = 0; i < n; ++i) dot += left[i] * static_cast<double>(a[i * r + d]);
          for (uint64_t i = 0; i < n; ++i) left[i] -= dot * static_cast<double>(a[i * r + d]);
        }
        for (const double x : left) rest += x * x;
        CHECK(rest <= 1e-10 * norm);
      }
    }
}
