// The loops of lowrank_kernel.hpp over the vectors V of an instruction set. Included where its instructions are
// allowed.
#pragma once

#include <cstring>

#include "transform/lowrank_kernel.hpp"

namespace dr {

template <class V, bool keeps>
struct lowrank_loops {
  using vector = typename V::vector;
  static constexpr uint32_t sums = 16, lanes = V::lanes, parts = sums / lanes;
  // In training, rows are not in a cache; the CPU's prefetchers stop at page boundaries.
  static constexpr uint64_t ahead = 256;

  struct source {
    const float *gradient, *residual;
    float beta, gamma;
    vector by_beta, by_gamma;

    DR_EVERYWHERE source(const lowrank_matrix& m, uint64_t at)
        : gradient(m.gradient + at),
          residual(keeps ? m.residual + at : nullptr),
          beta(m.beta),
          gamma(m.gamma),
          by_beta(V::all(m.beta)),
          by_gamma(V::all(m.gamma)) {}
    DR_EVERYWHERE vector load(uint64_t j) const {
      const vector g = V::load(gradient + j);
      if constexpr (!keeps) return g;
      return V::add(V::mul(by_gamma, g), V::mul(by_beta, V::load(residual + j)));
    }
    DR_EVERYWHERE float at(uint64_t j) const {
      if constexpr (!keeps) return gradient[j];
      return gamma * gradient[j] + beta * residual[j];
    }
    DR_EVERYWHERE void prefetch(uint64_t j) const {
      __builtin_prefetch(gradient + j + ahead);
      if constexpr (keeps) __builtin_prefetch(residual + j + ahead);
    }
  };

  // Calls f<number of columns>(first column) for all columns of the factor.
  template <uint32_t group, class F>
  DR_EVERYWHERE static void in_groups(uint32_t rank, F&& f) {
    uint32_t c = 0;
    for (; c + group <= rank; c += group) f.template operator()<group>(c);
    if constexpr (group > 1)
      for (; c < rank; ++c) f.template operator()<1>(c);
  }

  static void project(const lowrank_matrix& m, const float* q, float* p, uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) {
      const source x(m, i * m.columns);
      in_groups<4>(
          m.rank, [&]<uint32_t n>(uint32_t c) { project_row<n>(x, q + c * m.columns, m.columns, p + i * m.rank + c); });
    }
  }

  template <uint32_t n>
  DR_EVERYWHERE static void project_row(const source& x, const float* q, uint64_t columns, float* p) {
    vector sum[n][parts];
    for (uint32_t c = 0; c < n; ++c)
      for (uint32_t k = 0; k < parts; ++k) sum[c][k] = V::all(0);
    uint64_t j = 0;
    for (; j + sums <= columns; j += sums) {
      x.prefetch(j);
      for (uint32_t k = 0; k < parts; ++k) {
        const vector value = x.load(j + k * lanes);
        for (uint32_t c = 0; c < n; ++c)
          sum[c][k] = V::add(sum[c][k], V::mul(value, V::load(q + c * columns + j + k * lanes)));
      }
    }
    float left[n][sums];
    for (uint32_t c = 0; c < n; ++c)
      for (uint32_t k = 0; k < parts; ++k) V::store(left[c] + k * lanes, sum[c][k]);
    for (uint32_t k = 0; j < columns; ++j, ++k)
      for (uint32_t c = 0; c < n; ++c) left[c][k] += x.at(j) * q[c * columns + j];
    for (uint32_t c = 0; c < n; ++c) {
      for (uint32_t half = sums / 2; half; half /= 2)
        for (uint32_t k = 0; k < half; ++k) left[c][k] += left[c][k + half];
      p[c] = left[c][0];
    }
  }

  static void gather(const lowrank_matrix& m, const float* p, uint64_t rows, float* q, uint64_t first, uint64_t last) {
    for (uint32_t c = 0; c < m.rank; ++c) std::memset(q + c * m.columns + first, 0, (last - first) * sizeof(float));
    constexpr uint32_t group = 4;  // rows for which a sum is loaded once
    uint64_t i = 0;
    for (; i + group <= rows; i += group) gather_rows<group>(m, p + i * m.rank, i, q, first, last);
    for (; i < rows; ++i) gather_rows<1>(m, p + i * m.rank, i, q, first, last);
  }

  template <uint32_t rows>
  DR_EVERYWHERE static void gather_rows(const lowrank_matrix& m, const float* p, uint64_t row, float* q, uint64_t first,
                                        uint64_t last) {
    const source x(m, row * m.columns);
    uint64_t j = first;
    for (; j + lanes <= last; j += lanes) {
      vector value[rows];
      for (uint32_t i = 0; i < rows; ++i) {
        value[i] = x.load(i * m.columns + j);
        x.prefetch(i * m.columns + j);
      }
      for (uint32_t c = 0; c < m.rank; ++c) {
        float* const at = q + c * m.columns + j;
        vector sum = V::load(at);
        for (uint32_t i = 0; i < rows; ++i) sum = V::add(sum, V::mul(value[i], V::all(p[i * m.rank + c])));
        V::store(at, sum);
      }
    }
    for (; j < last; ++j)
      for (uint32_t c = 0; c < m.rank; ++c) {
        float sum = q[c * m.columns + j];
        for (uint32_t i = 0; i < rows; ++i) sum += x.at(i * m.columns + j) * p[i * m.rank + c];
        q[c * m.columns + j] = sum;
      }
  }

  static void expand(const lowrank_matrix& m, const float* p, const float* q, float scale, float* out, uint64_t first,
                     uint64_t last) {
    const vector by = V::all(scale);
    for (uint64_t i = first; i < last; ++i) {
      const source x(m, i * m.columns);
      const float* const row = p + i * m.rank;
      float* const to = out + i * m.columns;
      float* const residual = keeps ? m.residual + i * m.columns : nullptr;
      uint64_t j = 0;
      for (; j + lanes <= m.columns; j += lanes) {
        x.prefetch(j);
        vector sum = V::mul(V::all(row[0]), V::load(q + j));
        for (uint32_t c = 1; c < m.rank; ++c) sum = V::add(sum, V::mul(V::all(row[c]), V::load(q + c * m.columns + j)));
        if constexpr (keeps) V::store(residual + j, V::sub(x.load(j), sum));
        V::store(to + j, V::mul(by, sum));
      }
      for (; j < m.columns; ++j) {
        float sum = row[0] * q[j];
        for (uint32_t c = 1; c < m.rank; ++c) sum += row[c] * q[c * m.columns + j];
        if constexpr (keeps) residual[j] = x.at(j) - sum;
        to[j] = scale * sum;
      }
    }
  }
};

// The kernels of an instruction set: with a residual or without.
template <class V>
constexpr lowrank_kernels make_lowrank_kernels() {
  return {[](const lowrank_matrix& m, const float* q, float* p, uint64_t first, uint64_t last) {
            m.residual ? lowrank_loops<V, true>::project(m, q, p, first, last)
                       : lowrank_loops<V, false>::project(m, q, p, first, last);
          },
          [](const lowrank_matrix& m, const float* p, uint64_t rows, float* q, uint64_t first, uint64_t last) {
            m.residual ? lowrank_loops<V, true>::gather(m, p, rows, q, first, last)
                       : lowrank_loops<V, false>::gather(m, p, rows, q, first, last);
          },
          [](const lowrank_matrix& m, const float* p, const float* q, float scale, float* out, uint64_t first,
             uint64_t last) {
            m.residual ? lowrank_loops<V, true>::expand(m, p, q, scale, out, first, last)
                       : lowrank_loops<V, false>::expand(m, p, q, scale, out, first, last);
          }};
}

}  // namespace dr
