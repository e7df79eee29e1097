// rank_fit: the search of levels and the look-up, and the fit that precedes them.
#pragma once

#include <memory>

#include "codecs/value/rank_fit/rank_fit_kernel.hpp"
#include "kernel_bench.hpp"
#include "primitive/rng.hpp"

namespace dr::bench {

inline void add_rank_fit(subjects& all) {
  // Laplace values above a threshold, as a sparsifier selects them.
  constexpr uint64_t n = 250000;
  struct data {
    std::vector<uint32_t> values = std::vector<uint32_t>(n), decoded = std::vector<uint32_t>(n);
    std::vector<uint8_t> payload;
    uint32_t threshold[rank_fit_levels_max], level[rank_fit_levels_max] = {};
    std::vector<rank_fit_bin> bins = std::vector<rank_fit_bin>(rank_fit_bins);
    rank_fit_curve curve;
    float c[rank_fit_degree_max + 1];
  };
  for (const unsigned bits : {2, 4, 5, 7}) {
    const auto d = std::make_shared<data>();
    const rank_fit_layout l(bits, 5, n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t drawn = draw(7, i);
      const double v = 4.6 - portable_log2((static_cast<double>(drawn >> 12) + 1) * 0x1p-52) / 1.4427;
      d->values[i] = f32_type::from_f64(drawn & 1 ? -v : v);
    }
    const auto key = [](uint32_t v) { return v & 0x7fffffff; };
    const auto fit = [d, key, l](cpu_level at) {
      uint32_t range[2];
      rank_fit_range<f32_type>.at(at)(d->values.data(), n, range);
      rank_fit_count(
          n, range[0], range[1], [&](uint64_t i) { return key(d->values[i]); }, d->bins.data(), d->curve);
      rank_fit_fit(d->curve, l.bits, l.coefficients, d->c);
    };
    fit(cpu_level::scalar);
    double level[rank_fit_levels_max];
    rank_fit_levels(bits, l.coefficients, d->c, level);
    rank_fit_thresholds(1u << bits, level, d->threshold);
    for (unsigned i = 0; i < 1u << bits; ++i) d->level[i] = f32_type::from_f64(level[i]);
    d->payload.resize(l.size);
    const std::string input = "250e3 laplace f32, " + std::to_string(bits) + " bits";
    const double bytes = 4.0 * n + static_cast<double>(l.size);
    const std::vector<cpu_level> levels(std::begin(cpu_levels), std::end(cpu_levels));
    all.push_back({"rank_fit fit", input, "value", n, 4.0 * n, {cpu_level::scalar, cpu_level::avx2}, fit, [d] {
                     return digest_of(d->c, sizeof(float) * 6);
                   }});
    all.push_back({"rank_fit encode", input, "value", n, bytes, levels,
                   [d, l](cpu_level at) {
                     rank_fit_encode<f32_type>.at(at)(d->values.data(), l, d->threshold, d->payload.data());
                   },
                   [d] { return digest_of(d->payload.data(), d->payload.size()); }});
    all.push_back(
        {"rank_fit decode", input, "value", n, bytes, levels,
         [d, l](cpu_level at) { rank_fit_decode<f32_type>.at(at)(d->payload.data(), l, d->level, d->decoded.data()); },
         [d] { return digest_of(d->decoded.data(), 4 * n); }});
  }
}

}  // namespace dr::bench
