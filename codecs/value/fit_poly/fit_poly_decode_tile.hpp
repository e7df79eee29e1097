// value=fit_poly on a GPU: decode.
#pragma once

#include <bit>

#include "codecs/value/fit_poly/fit_poly_tile.hpp"

namespace dr {

template <class Args>
struct fit_poly_decode {
  static constexpr const char* name = "fit_poly_decode";
  static constexpr unsigned lanes = fit_poly_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    fit_poly_curve curve;
    float coefficients[fit_poly_coefficients_max];
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const uint32_t begin = (b.index() - job.first_tile) * fit_poly_decode_tile;
    // Another block of this job may raise a fault meanwhile: all lanes use one lane's view.
    const uint32_t n = b.template once<uint32_t>([&] { return static_cast<uint32_t>(live_count(job)); });
    if (n == 0) return fit_poly_nothing(b, job, begin == 0);
    if (begin >= n) return;
    // Every block checks the payload; the first block of the job reports the result.
    const auto* in = reinterpret_cast<const uint32_t*>(input_of(job));
    const uint64_t size = job.in_size && *job.in_size < job.extra ? *job.in_size : job.extra;
    const bool jump = a.common.knots == fit_poly_jump;
    const uint64_t head = jump ? 8 : 4, each = jump ? 2 : 4;
    const uint64_t claimed = size >= 4 ? in[0] : uint64_t{n} + 1;
    const auto corrupt = [&](uint64_t where, uint64_t what) {
      b.phase([&](unsigned lane) {
        if (begin == 0 && lane == 0) raise(job.fault, DR_E_CORRUPT, DR_STREAM_VALUE, where, what);
      });
    };
    if (claimed > n) return corrupt(0, claimed);
    const auto positives = static_cast<uint32_t>(claimed);
    const uint64_t about_zero = !jump ? 0 : size >= 8 ? in[1] : uint64_t{n} - positives + 1;
    if (about_zero > n - positives) return corrupt(4, about_zero);
    const auto middle = static_cast<uint32_t>(about_zero);
    fit_poly_measure(b, s.curve, n, positives, middle, a.common);
    const uint32_t coefficients = b.template once<uint32_t>([&] { return s.curve.coefficient[s.curve.segments]; });
    if (size != head + each * coefficients) return corrupt(size, head + each * coefficients);
    typename Block::template each<uint32_t> good;  // coefficients before the lane's own, if that is not finite
    const auto bits = [&](uint32_t i) { return jump ? reinterpret_cast<const uint16_t*>(in + 2)[i] : in[1 + i]; };
    b.phase([&](unsigned lane) {
      good[lane] = coefficients;
      if (lane >= coefficients) return;
      const uint32_t c = bits(lane);
      s.coefficients[lane] = std::bit_cast<float>(jump ? c << 16 : c);
      if (!is_finite<f32_type>(jump ? c << 16 : c)) good[lane] = lane;
    });
    const uint32_t finite = b.min(good);
    if (finite < coefficients) return corrupt(head + each * finite, bits(finite));
    b.phase([&](unsigned lane) {
      for (uint32_t k = 0; k < fit_poly_decode_tile / lanes; ++k)
        if (const uint32_t i = begin + k * lanes + lane; i < n) put(a.common, s, job, i);
      if (begin == 0 && lane == 0) *job.out_size = uint64_t{n} * value_size(a.common.dtype);
    });
  }

  // Value i, below the count.
  DR_HD static void put(const fit_poly_common& common, const shared& s, const tile_job& job, uint32_t i) {
    const fit_poly_curve& c = s.curve;
    const uint32_t segment = fit_poly_segment(c.first, c.segments, i), points = c.points(segment);
    double y = gram_at(i - c.first[segment], points, fit_poly_coefficients(points, common.degree), c.b[segment],
                       s.coefficients + c.coefficient[segment]);
    if (i < c.positives ? y < 0 : i >= c.positives + c.middle && y > 0) y = 0;
    with_value_type(common.dtype, [&](auto type) {
      using T = decltype(type);
      static_cast<typename T::bits*>(job.out)[i] = T::from_f64(saturate<T>(y));
    });
  }
};

}  // namespace dr
