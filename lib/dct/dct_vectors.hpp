// The transforms of dct_kernel.hpp over the vectors V of an instruction set. Included where its instructions are allowed.
#pragma once

#include <cstring>

#include "dct/dct_kernel.hpp"

namespace dr {

template <class V>
struct dct_loops {
  using vector = typename V::vector;
  static constexpr uint32_t lanes = V::lanes;
  static constexpr uint32_t together = 8;  // sums in registers
  // A tile between the two directions, in rows of the largest side.
  static constexpr uint32_t pitch = tile_side_max;
  struct room {
    alignas(64) float at[tile_side_max * pitch];
  };

  // ---- Columns: N values, `stride` apart, of `lanes` columns ------------------------------------------------------

  // s [group] = Σ factors[n][first + j] · x[n], from n = 0 on.
  template <uint32_t h, uint32_t group, class X>
  DR_EVERYWHERE static void sum(const float* factors, uint32_t first, X&& x, vector* s) {
    const vector x0 = x(0);
    for (uint32_t j = 0; j < group; ++j) s[j] = V::mul(V::all(factors[first + j]), x0);
    for (uint32_t n = 1; n < h; ++n) {
      const vector xn = x(n);
      for (uint32_t j = 0; j < group; ++j) s[j] = V::add(s[j], V::mul(V::all(factors[n * h + first + j]), xn));
    }
  }

  template <uint32_t N, uint32_t M, bool last>
  DR_EVERYWHERE static void forward_level(vector* x, const float* factors, float* out, uint64_t stride) {
    if constexpr (M == 1) {
      store<last>(out, V::mul(V::all(factors[0]), x[0]));
    } else {
      constexpr uint32_t h = M / 2, step = N / M, group = h < together ? h : together;
      vector odd[h];
      for (uint32_t n = 0; n < h; ++n) {
        const vector a = x[n], b = x[M - 1 - n];
        x[n] = V::add(a, b);
        odd[n] = V::sub(a, b);
      }
      for (uint32_t k = 0; k < h; k += group) {
        vector s[group];
        sum<h, group>(
            factors, k, [&](uint32_t n) { return odd[n]; }, s);
        for (uint32_t j = 0; j < group; ++j) store<last>(out + (2 * (k + j) + 1) * step * stride, s[j]);
      }
      forward_level<N, h, last>(x, factors + h * h, out, stride);
    }
  }

  template <uint32_t N, uint32_t M>
  DR_EVERYWHERE static void inverse_level(const float* in, uint64_t stride, vector* x) {
    constexpr uint32_t behind = (N * N - M * M) / 3;  // factors of larger M
    if constexpr (M == 1) {
      x[0] = V::mul(V::all(dct_factors<N>.of[behind]), V::load(in));
    } else {
      inverse_level<N, M / 2>(in, stride, x);
      constexpr uint32_t h = M / 2, step = N / M, group = h < together ? h : together;
      for (uint32_t n = 0; n < h; n += group) {
        vector s[group];
        sum<h, group>(
            dct_factors<N>.of + behind, n, [&](uint32_t k) { return V::load(in + (2 * k + 1) * step * stride); }, s);
        for (uint32_t j = 0; j < group; ++j) {
          const vector even = x[n + j];
          x[n + j] = V::add(even, s[j]);
          x[M - 1 - n - j] = V::sub(even, s[j]);
        }
      }
    }
  }

  // A NaN becomes the positive quiet one, so that it has the same bits everywhere.
  template <bool last>
  DR_EVERYWHERE static void store(float* to, const vector& x) {
    V::store(to, last ? V::clean(x) : x);
  }

  template <uint32_t N, bool inverts, bool last>
  static void columns_of(const float* in, uint64_t in_stride, uint32_t n, float* out, uint64_t out_stride) {
    for (uint32_t c = 0; c < n; c += lanes) {
      vector x[N];
      if constexpr (inverts) {
        inverse_level<N, N>(in + c, in_stride, x);
        for (uint32_t k = 0; k < N; ++k) store<last>(out + c + k * out_stride, x[k]);
      } else {
        for (uint32_t k = 0; k < N; ++k) x[k] = V::load(in + c + k * in_stride);
        forward_level<N, N, last>(x, dct_factors<N>.of, out + c, out_stride);
      }
    }
  }

  // n columns, rounded up to whole vectors.
  template <bool inverts, bool last>
  static void columns(uint32_t side, const float* in, uint64_t in_stride, uint32_t n, float* out, uint64_t out_stride) {
    switch (side) {
      case 1: return columns_of<1, inverts, last>(in, in_stride, n, out, out_stride);
      case 2: return columns_of<2, inverts, last>(in, in_stride, n, out, out_stride);
      case 4: return columns_of<4, inverts, last>(in, in_stride, n, out, out_stride);
      case 8: return columns_of<8, inverts, last>(in, in_stride, n, out, out_stride);
      case 16: return columns_of<16, inverts, last>(in, in_stride, n, out, out_stride);
      case 32: return columns_of<32, inverts, last>(in, in_stride, n, out, out_stride);
      default: return columns_of<64, inverts, last>(in, in_stride, n, out, out_stride);
    }
  }

  // ---- Tiles ------------------------------------------------------------------------------------------------------

  // to [c][r] = from [r][c], in blocks of 8 by 8: up to 7 rows and columns more are read and written.
  static void transpose(const float* from, uint64_t from_stride, uint32_t rows, uint32_t columns, float* to,
                        uint64_t to_stride) {
    for (uint32_t r = 0; r < rows; r += 8)
      for (uint32_t c = 0; c < columns; c += 8)
        V::transpose_8(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  }

  // Rows of `n` values, into or out of rows of another stride; what is behind n in `to` is 0 up to `full`.
  static void copy_rows(const float* from, uint64_t from_stride, uint32_t rows, uint32_t n, float* to,
                        uint64_t to_stride, uint32_t full = 0) {
    for (uint32_t r = 0; r < rows; ++r) {
      std::memcpy(to + r * to_stride, from + r * from_stride, n * sizeof(float));
      for (uint32_t c = n; c < full; ++c) to[r * to_stride + c] = 0;
    }
  }

  // Both directions: in [rows][width] becomes out [width][rows], contiguous.
  template <bool inverts>
  static void both(const float* in, uint64_t stride, uint32_t rows, uint32_t width, float* out) {
    room a, b;
    const bool wide = width >= 16, high = rows >= 16;
    if (!wide) {
      copy_rows(in, stride, rows, width, b.at, pitch, 16);
      in = b.at;
      stride = pitch;
    }
    // (Rows behind the last are read by the transposition.)
    for (uint32_t r = rows; r < 16; ++r) std::memset(a.at + r * pitch, 0, pitch * sizeof(float));
    columns<inverts, false>(rows, in, stride, wide ? width : 16, a.at, pitch);
    transpose(a.at, pitch, high ? rows : 16, wide ? width : 16, b.at, pitch);
    if (high) return columns<inverts, true>(width, b.at, pitch, rows, out, rows);
    columns<inverts, true>(width, b.at, pitch, 16, a.at, pitch);
    copy_rows(a.at, pitch, width, rows, out, rows);
  }

  static void forward(const float* in, uint64_t stride, uint32_t h, uint32_t w, float* out) {
    both<false>(in, stride, h, w, out);
  }
  static void inverse(const float* in, uint32_t h, uint32_t w, float* out) { both<true>(in, h, w, h, out); }

  template <bool inverts>
  static void runs(const float* in, uint32_t count, uint32_t n, float* out) {
    room a, b;
    const bool whole = count == runs_at_once && n >= 8;
    if (!whole) {
      for (uint32_t r = count; r < runs_at_once; ++r) std::memset(b.at + r * pitch, 0, pitch * sizeof(float));
      copy_rows(in, n, count, n, b.at, pitch, 8);
    }
    transpose(whole ? in : b.at, whole ? n : pitch, runs_at_once, n, a.at, runs_at_once);
    columns<inverts, true>(n, a.at, runs_at_once, runs_at_once, b.at, runs_at_once);
    if (whole) return transpose(b.at, runs_at_once, n, runs_at_once, out, n);
    for (uint32_t r = 0; r < count; ++r)
      for (uint32_t k = 0; k < n; ++k) out[r * n + k] = b.at[k * runs_at_once + r];
  }
};

template <class V>
consteval dct_kernels make_dct_kernels() {
  return {dct_loops<V>::forward, dct_loops<V>::inverse, dct_loops<V>::template runs<false>,
          dct_loops<V>::template runs<true>};
}

}  // namespace dr
