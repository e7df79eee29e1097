#include "affine_fit.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace dr::calibrate {
namespace {

// c that minimises Σ ((c - y) / y)².
double best_constant(std::span<const sample> samples) {
  double over = 0, under = 0;
  for (const sample& s : samples) over += 1 / s.value, under += 1 / (s.value * s.value);
  return over / under;
}

// Minimises Σ ((base + per_unit n - y) / y)²: a line through (n / y, 1 / y) -> 1.
affine best_line(std::span<const sample> samples) {
  double w = 0, wn = 0, wnn = 0, wy = 0, wny = 0;
  for (const sample& s : samples) {
    const double weight = 1 / (s.value * s.value), n = static_cast<double>(s.size);
    w += weight, wn += weight * n, wnn += weight * n * n, wy += weight * s.value, wny += weight * n * s.value;
  }
  const double determinant = w * wnn - wn * wn;
  affine line;
  // (Two sizes that are equal, or nearly so, have no slope.)
  if (determinant > 1e-12 * w * wnn) line.per_unit = (w * wny - wn * wy) / determinant;
  if (line.per_unit <= 0) return {0, best_constant(samples), 0, 0};
  line.base = (wy - line.per_unit * wn) / w;
  return line;
}

double error_of(std::span<const sample> samples, const affine& fit) {
  double sum = 0;
  for (const sample& s : samples) {
    const double error = fit.at(static_cast<double>(s.size)) / s.value - 1;
    sum += error * error;
  }
  return sum;
}

}  // namespace

double affine::at(double size) const { return std::max(floor, base + per_unit * size); }

uint64_t growth_size(uint64_t available, uint64_t largest) {
  constexpr uint64_t least = 1024, max_size = uint64_t{1} << 18;
  const uint64_t size = std::min({available / 8, largest, max_size});
  return size < std::min(least, largest) ? 0 : size;
}

affine fit_affine(std::span<const sample> measured) {
  if (measured.empty()) return {};
  std::vector<sample> samples(measured.begin(), measured.end());
  for (size_t i = samples.size() - 1; i-- > 0;) samples[i].value = std::min(samples[i].value, samples[i + 1].value);
  if (const sample& only = samples[0]; samples.back().size == only.size && only.size > 0)
    return {only.value, 0, only.value / static_cast<double>(only.size), 1};
  affine best;
  double least = std::numeric_limits<double>::infinity();
  // A line through fewer than three points fits any.
  for (size_t flat = 0; flat == 0 || flat + 3 <= samples.size(); ++flat) {
    affine fit = best_line(std::span(samples).subspan(flat));
    fit.floor = flat ? best_constant(std::span(samples).first(flat)) : fit.base > 0 ? fit.base : samples[0].value;
    const double error = error_of(samples, fit);
    if (error < least) least = error, best = fit;
  }
  const double c = best_constant(measured), spread = error_of(measured, {c, c, 0, 0});
  best.r2 = spread > 0 ? 1 - error_of(measured, best) / spread : 1;
  return best;
}

void disturbance::add(const std::string& name, const affine& fit, std::span<const sample> samples) {
  constexpr double min_r2 = 0.9, max_spread = 0.3;
  ++fits_, medians_ += samples.size();
  poor_ += fit.r2 < min_r2;
  if (fit.r2 < min_r2_) min_r2_ = fit.r2, poorest_ = name;
  for (const sample& s : samples) {
    wide_ += s.spread > max_spread;
    if (s.spread > max_spread_) max_spread_ = s.spread, widest_ = fmt::format("{}, {} elements", name, s.size);
  }
}

std::string disturbance::note() const {
  std::string text;
  if (poor_)
    text += fmt::format("r2 is below 0.9 of {} of {} fits (least {:.2f}: {})", poor_, fits_, min_r2_, poorest_);
  if (wide_)
    text += fmt::format("{}quartiles are more than 30 % of the median apart in {} of {} samples (most {:.0f} %: {})",
                        poor_ ? "; " : "", wide_, medians_, 100 * max_spread_, widest_);
  return text.empty() ? text : text + ". A machine that does nothing else gives better costs";
}

}  // namespace dr::calibrate
