// A sorted curve as the sum of two exponentials (layout and arithmetic: SPEC.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "codecs/family/fits/least_squares.hpp"
#include "primitive/exp2.hpp"
#include "primitive/value_type.hpp"

namespace dr {

// y = a 2^(-|b| e) + c 2^(-|d| f), where e and f are distances from an end of the curve: its last point for a rate b or
// d above 0, else its first. So each term is largest at its end, where a and c are its values, and no exponential
// overflows.
struct fit_dexp_curve {
  float a, b, c, d;
};

// 2^(-|rate| e) at point x of n.
inline double fit_dexp_term(double rate, uint64_t x, uint64_t n) {
  const uint64_t steps = rate > 0 ? n - 1 - x : x;
  const double t = (rate > 0 ? rate : -rate) * (2 * static_cast<double>(steps) / static_cast<double>(n));
  return portable_exp2(t > 1000 ? -1000 : -t);
}

inline double fit_dexp_at(const fit_dexp_curve& p, uint64_t x, uint64_t n) {
  return static_cast<double>(p.a) * fit_dexp_term(static_cast<double>(p.b), x, n) +
         static_cast<double>(p.c) * fit_dexp_term(static_cast<double>(p.d), x, n);
}

// ---- Encoder ----------------------------------------------------------------------------------------------

// The curve in few points: runs of it, each no longer than 1/32 of its distance from the nearer end, are replaced by their mean at
// their middle. Below 2^32 values there are at most 2 · (64 + 32 · 27 ln 2) < 1400.
inline constexpr unsigned fit_dexp_runs_max = 1400;
struct fit_dexp_runs {
  unsigned count = 0;
  double weight[fit_dexp_runs_max], mean[fit_dexp_runs_max];
  double term[3][fit_dexp_runs_max];  // those of the best rates, and of one that is tried
  uint64_t middle[fit_dexp_runs_max], n = 0;
  double squares = 0, highest = 0;  // Σ weight · mean², max |mean|
};

template <class F>
void fit_dexp_gather(uint64_t n, F&& y, fit_dexp_runs& runs) {
  runs.count = 0;
  runs.n = n;
  runs.squares = runs.highest = 0;
  for (uint64_t begin = 0; begin < n;) {
    uint64_t length = begin / 32;
    if (n - begin < 2 * begin) length = (n - begin) / 32 < length ? (n - begin) / 32 : length;
    length = length < 1 ? 1 : length;
    double sum = 0;
    for (uint64_t x = begin; x < begin + length; ++x) sum += y(x);
    const auto weight = static_cast<double>(length);
    const double mean = sum / weight;
    runs.weight[runs.count] = weight;
    runs.mean[runs.count] = mean;
    runs.middle[runs.count++] = begin + (length - 1) / 2;
    runs.squares += weight * (mean * mean);
    runs.highest = std::max(runs.highest, std::fabs(mean));
    begin += length;
  }
}

// The two rates of Jacquelin's integral equation (Régressions et équations intégrales, 2009): with S the
// integral of y and T that of S, y = A T + B S + C x + D, and the rates are the roots of p² - B p - A. False where they
// are not real.
template <class F>
bool fit_dexp_jacquelin(uint64_t n, F&& y, double (&rate)[2]) {
  double a[4][4] = {}, right[4] = {}, s = 0, t = 0, before = 0;
  const double step = 2 / static_cast<double>(n);
  for (uint64_t x = 0; x < n; ++x) {
    const double now = y(x);
    if (x > 0) {
      const double next = s + 0.5 * step * (now + before);
      t += 0.5 * step * (next + s);
      s = next;
    }
    before = now;
    const double row[4] = {t, s, step * static_cast<double>(x), 1};
    for (unsigned i = 0; i < 4; ++i) {
      for (unsigned j = 0; j <= i; ++j) a[i][j] += row[i] * row[j];
      right[i] += row[i] * now;
    }
  }
  solve_normal(4, a, right);
  const double root = right[1] * right[1] + 4 * right[0];
  if (!(root > 0) || !std::isfinite(root)) return false;
  constexpr double to_base_two = 0x1.71547652b82fep+0;  // 1 / ln 2
  rate[0] = 0.5 * (right[1] + std::sqrt(root)) * to_base_two;
  rate[1] = 0.5 * (right[1] - std::sqrt(root)) * to_base_two;
  return std::isfinite(rate[0]) && std::isfinite(rate[1]);
}

// The squared error of the best amplitudes for the terms e and f; HUGE_VAL where they are too much alike.
inline double fit_dexp_amplitudes(const fit_dexp_runs& runs, const double* e, const double* f, double (&amplitude)[2]) {
  double ee = 0, ef = 0, ff = 0, ey = 0, fy = 0;
  for (unsigned i = 0; i < runs.count; ++i) {
    const double w = runs.weight[i], y = runs.mean[i];
    ee += w * (e[i] * e[i]);
    ef += w * (e[i] * f[i]);
    ff += w * (f[i] * f[i]);
    ey += w * (e[i] * y);
    fy += w * (f[i] * y);
  }
  const double determinant = ee * ff - ef * ef;
  if (!(determinant > 1e-9 * (ee * ff))) return HUGE_VAL;
  amplitude[0] = (ey * ff - fy * ef) / determinant;
  amplitude[1] = (fy * ee - ey * ef) / determinant;
  // Large terms that cancel would not survive their rounding to f32.
  if (!(std::fabs(amplitude[0]) + std::fabs(amplitude[1]) < 1e3 * runs.highest)) return HUGE_VAL;
  const double error = runs.squares - amplitude[0] * ey - amplitude[1] * fy;
  return error > 0 ? error : 0;
}

inline double fit_dexp_error(const fit_dexp_runs& runs, const fit_dexp_curve& p) {
  double error = 0;
  for (unsigned i = 0; i < runs.count; ++i) {
    const double off = runs.mean[i] - fit_dexp_at(p, runs.middle[i], runs.n);
    error += runs.weight[i] * (off * off);
  }
  return error;
}

// A fit of y(0 … n-1), n > 0. Of several pairs of rates the best is taken, Jacquelin's among them, and moved as long as
// that helps, by factors from 4 down to 2^(1/64). Where nothing is better, and where nothing is finite, the mean
// stands.
template <class F>
fit_dexp_curve fit_dexp_fit(uint64_t n, F&& y, fit_dexp_runs& runs) {
  fit_dexp_gather(n, y, runs);
  double sum = 0;
  for (unsigned i = 0; i < runs.count; ++i) sum += runs.weight[i] * runs.mean[i];
  const fit_dexp_curve mean{static_cast<float>(sum / static_cast<double>(n)), 0, 0, 0};
  if (n == 1) return mean;

  double best = HUGE_VAL, rate[2] = {}, amplitude[2] = {};
  double *own[2] = {runs.term[0], runs.term[1]}, *spare = runs.term[2];
  const auto fill = [&](double* term, double r) {
    for (unsigned i = 0; i < runs.count; ++i) term[i] = fit_dexp_term(r, runs.middle[i], n);
  };
  double start[10][2];
  unsigned starts = 0;
  if (n >= 5 && fit_dexp_jacquelin(n, y, start[0])) ++starts;
  for (const double fast : {-64.0, -8.0, 8.0, 64.0})
    for (const double slow : {-0.5, 0.5}) {
      start[starts][0] = fast;
      start[starts++][1] = slow;
    }
  for (unsigned s = 0; s < starts; ++s) {
    double x[2] = {};
    fill(own[0], start[s][0]);
    fill(own[1], start[s][1]);
    const double error = fit_dexp_amplitudes(runs, own[0], own[1], x);
    if (!(error < best)) continue;
    best = error;
    std::copy_n(start[s], 2, rate);
    std::copy_n(x, 2, amplitude);
  }
  if (best == HUGE_VAL) return mean;

  fill(own[0], rate[0]);
  fill(own[1], rate[1]);
  const double highest_rate = 2 * static_cast<double>(n);  // falls to 1/16 from one point to the next
  const auto move = [&](unsigned k, double by) {
    const double r = rate[k] * by;
    if (std::fabs(r) > highest_rate) return false;
    double x[2] = {};
    fill(spare, r);
    const double error = fit_dexp_amplitudes(runs, k == 0 ? spare : own[0], k == 0 ? own[1] : spare, x);
    if (!(error < best)) return false;
    best = error;
    rate[k] = r;
    std::copy_n(x, 2, amplitude);
    std::swap(spare, own[k]);
    return true;
  };
  double factor = 4;
  for (unsigned round = 0; round < 8; ++round, factor = std::sqrt(factor)) {
    bool moved = true;
    for (unsigned step = 0; moved && step < 8; ++step) {
      moved = false;
      for (unsigned k = 0; k < 2; ++k) moved |= move(k, factor) || move(k, 1 / factor);
    }
  }
  const auto narrow = [](double v) { return static_cast<float>(saturate<f32_type>(v)); };
  const fit_dexp_curve found{narrow(amplitude[0]), narrow(rate[0]), narrow(amplitude[1]), narrow(rate[1])};
  return fit_dexp_error(runs, found) < fit_dexp_error(runs, mean) ? found : mean;
}

// Ascending in this key is: sign clear first, then by descending value. The key of the key is the value.
template <class T>
constexpr uint32_t fit_dexp_sort_key(typename T::bits b) {
  constexpr uint32_t sign = uint32_t{T::magnitude_mask} + 1;
  return b & sign ? b : T::magnitude_mask - b;
}

}  // namespace dr
