// value=fit_poly on a GPU: encode. A job of up to 2048 values is encoded by one block, which sorts in shared memory.
// The others are sorted together by (job, key), so that jobs keep their places; then a block sums a tile of the sum tree,
// and the last block of a job makes the coefficients.
#pragma once

#include <bit>

#include "codecs/value/fit_poly/fit_poly_tile.hpp"
#include "primitive/lookback.hpp"

namespace dr {

// The value of a sort key.
DR_HD inline double fit_poly_number(uint32_t dtype, uint32_t key) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    return double{T::to_f32(static_cast<typename T::bits>(fit_poly_sort_key<T>(static_cast<typename T::bits>(key))))};
  });
}
// The sort key of value i.
DR_HD inline uint32_t fit_poly_key(uint32_t dtype, const void* values, uint64_t i) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    return fit_poly_sort_key<T>(static_cast<const typename T::bits*>(values)[i]);
  });
}
DR_HD inline bool fit_poly_positive(uint32_t dtype, uint32_t key) {
  return key <= with_value_type(dtype, [](auto type) { return uint32_t{decltype(type)::magnitude_mask}; });
}

// fit_poly_behind_jump; the lanes share its points.
template <class Block, class Y>
DR_HD uint32_t fit_poly_behind_jump(Block& b, fit_poly_rows& rows, const uint32_t& n, const Y& y) {
  constexpr unsigned groups = 16;
  constexpr double nowhere = -1;
  auto &largest = rows[0], &at = rows[1];
  const auto chord = fit_poly_chord_of::curve(n, y);
  for (auto search = fit_poly_search::between(chord.begin, n - 1);;) {
    b.phase([&](unsigned lane) {
      at[lane] = nowhere;
      for (uint32_t k = lane; k <= (search.high - search.low) / search.step; k += fit_poly_lanes) {
        const uint32_t x = search.low + k * search.step;
        const double now = chord.above(x, y(x));
        if (at[lane] != nowhere && now <= largest[lane]) continue;
        largest[lane] = now;
        at[lane] = x;
      }
    });
    // The first of the highest among `count` lanes, `stride` apart.
    const auto highest = [&](unsigned first, unsigned count, unsigned stride) {
      unsigned best = first;
      for (unsigned i = 1; i < count; ++i) {
        const unsigned other = first + i * stride;
        if (at[other] == nowhere) continue;
        if (largest[other] > largest[best] || (largest[other] == largest[best] && at[other] < at[best])) best = other;
      }
      return best;
    };
    b.phase([&](unsigned lane) {
      if (lane >= groups) return;
      const unsigned best = highest(lane, fit_poly_lanes / groups, groups);
      largest[lane] = largest[best];
      at[lane] = at[best];
    });
    const auto best = b.template once<uint32_t>([&] { return static_cast<uint32_t>(at[highest(0, groups, 1)]); });
    if (search.is_last()) return chord.is_jump(best, y(best)) ? n - 1 - best : 0;
    search = search.around(best);
  }
}

// The curve of sorted values; number(x): the x-th. `positives`: number of values without a sign bit.
template <class Block, class F>
DR_HD void fit_poly_divide(Block& b, fit_poly_rows& rows, fit_poly_curve& c, const uint32_t& n,
                           const uint32_t& positives, const fit_poly_common& common, const F& number) {
  uint32_t above = 0, below = 0;
  for (unsigned side = 0; side < 2 && common.knots == fit_poly_jump; ++side) {
    const uint32_t total = side == 0 ? positives : n - positives;
    const auto falling = [&](uint32_t x) { return side == 0 ? number(x) : -number(n - 1 - x); };
    const uint32_t behind = total ? fit_poly_behind_jump(b, rows, total, falling) : 0;
    (side == 0 ? above : below) = behind;
  }
  const uint32_t own = positives - above, middle = above + below;
  fit_poly_measure(b, c, n, own, middle, common);
}

// Eight numbers, `stride` apart, halved pairwise as the sum tree does.
DR_HD inline double fit_poly_halve(const double* v, unsigned stride) {
  return ((v[0] + v[4 * stride]) + (v[2 * stride] + v[6 * stride])) +
         ((v[stride] + v[5 * stride]) + (v[3 * stride] + v[7 * stride]));
}

// Σ y·P_j over a tile, j = 0 … degree, in the order of the sum tree, to `sums`. y(x): the x-th value of the job in its
// order, called once a point. After a segment's last point comes 0; memory after its last coefficient is not read.
template <class Block, class Y>
DR_HD void fit_poly_sum(Block& b, const fit_poly_curve& c, fit_poly_rows& sum, const uint32_t& tile,
                        const uint32_t& degree, const Y& y, double* const& sums) {
  b.phase([&](unsigned lane) {
    const uint32_t s = fit_poly_segment(c.tile, c.segments, tile), points = c.points(s);
    double value[4], u[4], p[4], before[4];
    for (unsigned k = 0; k < 4; ++k) {
      const uint32_t x = static_cast<uint32_t>((tile - c.tile[s]) * sum_tile) + k * fit_poly_lanes + lane;
      value[k] = x < points ? y(c.first[s] + x) : 0;
      u[k] = gram_u(x, points);
      p[k] = 1;
      before[k] = 0;
    }
    for (unsigned j = 0; j <= degree; ++j) {
      sum[j][lane] = (value[0] * p[0] + value[2] * p[2]) + (value[1] * p[1] + value[3] * p[3]);
      for (unsigned k = 0; k < 4; ++k) {
        const double next = gram_next(u[k], c.b[s][j], p[k], before[k]);
        before[k] = p[k];
        p[k] = next;
      }
    }
  });
  // 256 to 32 to 4 to 1.
  b.phase([&](unsigned lane) {
    for (unsigned task = lane; task < 32 * (degree + 1); task += fit_poly_lanes) {
      double* const v = &sum[task / 32][task % 32];
      *v = fit_poly_halve(v, 32);
    }
  });
  b.phase([&](unsigned lane) {
    if (lane >= 4 * (degree + 1)) return;
    double* const v = &sum[lane / 4][lane % 4];
    *v = fit_poly_halve(v, 4);
  });
  b.phase([&](unsigned lane) {
    if (lane > degree) return;
    const double* const v = sum[lane];
    sums[lane] = (v[0] + v[2]) + (v[1] + v[3]);
  });
}

// Sums of tiles, `stride` apart, added in order; eight loads at a time, or each would wait for the one before.
DR_HD inline double fit_poly_add_tiles(const double* sums, uint32_t tiles, uint32_t stride) {
  double total = 0;
  for (uint32_t t = 0; t < tiles; t += 8) {
    double some[8];
    for (uint32_t k = 0; k < 8; ++k) some[k] = t + k < tiles ? sums[uint64_t{t + k} * stride] : 0;
    for (uint32_t k = 0; k < 8; ++k) total += some[k];
  }
  return total;
}

// The payload, of the sums of all tiles. It has at most fit_poly_size_max(n, form) bytes.
template <class Block>
DR_HD void fit_poly_write(Block& b, const fit_poly_curve& c, const tile_job& job, const uint32_t& n,
                          const fit_poly_common& common, const double* const& sums) {
  b.phase([&](unsigned lane) {
    const uint32_t all = c.coefficient[c.segments], degree = common.degree;
    const bool jump = common.knots == fit_poly_jump;
    auto* out = static_cast<uint32_t*>(job.out);
    if (lane < all) {
      const uint32_t s = fit_poly_segment(c.coefficient, c.segments, lane), j = lane - c.coefficient[s];
      const double sum =
          fit_poly_add_tiles(sums + uint64_t{c.tile[s]} * (degree + 1) + j, c.tile[s + 1] - c.tile[s], degree + 1);
      if (jump)
        reinterpret_cast<uint16_t*>(out + 2)[lane] = gram_coefficient<bf16_type>(sum, c.points(s), j, c.b[s]);
      else
        out[1 + lane] = gram_coefficient<f32_type>(sum, c.points(s), j, c.b[s]);
    }
    if (lane != 0) return;
    out[0] = c.positives;
    if (jump) out[1] = c.middle;
    *job.out_size = jump ? 8 + 2 * uint64_t{all} : 4 + 4 * uint64_t{all};
    if (job.tell) *job.tell_count = n;
  });
}

// Pairs of key and position of the jobs that are sorted together, and how many are positive.
template <class Args>
struct fit_poly_keys {
  static constexpr const char* name = "fit_poly_keys";
  static constexpr unsigned lanes = fit_poly_lanes, grid_phases = 1;
  using args = Args;
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const auto n = static_cast<uint32_t>(live_count(job));
    const uint32_t begin = (b.index() - job.first_tile) * fit_poly_keys_tile, dtype = a.common.dtype;
    typename Block::template each<uint32_t> positives;
    b.phase([&](unsigned lane) {
      positives[lane] = 0;
      const unsigned bits = 8 * value_size(dtype);
      for (uint32_t k = 0; k < fit_poly_keys_tile / lanes; ++k) {
        const uint32_t i = begin + k * lanes + lane;
        if (i >= job.count_max) break;
        // Entries past the count come last of their job: no key is higher, and the sort is stable.
        const uint32_t key = i < n ? fit_poly_key(dtype, job.in, i) : static_cast<uint32_t>(low_mask(bits));
        positives[lane] += fit_poly_positive(dtype, key);
        a.common.keys[job.extra + i] = job.key << bits | key;
        a.common.positions[job.extra + i] = i;
      }
    });
    const uint32_t all = b.sum(positives);
    b.phase([&](unsigned lane) {
      if (lane == 0 && all) atomic_add(&a.common.state[2 * job.key], all);
    });
  }
};

// The order, and the payload, of the jobs that were sorted together.
template <class Args>
struct fit_poly_fit_sorted {
  static constexpr const char* name = "fit_poly_fit";
  static constexpr unsigned lanes = fit_poly_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    fit_poly_curve curve;
    fit_poly_rows sum;
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const auto n = static_cast<uint32_t>(live_count(job));
    const uint32_t tile = b.index() - job.first_tile, degree = a.common.degree;
    if (n == 0) return fit_poly_nothing(b, job, tile == 0);
    const uint32_t positives = a.common.state[2 * job.key];
    const uint64_t* const keys = a.common.keys + job.extra;
    const uint32_t* const positions = a.common.positions + job.extra;
    const auto number = [&](uint32_t x) { return fit_poly_number(a.common.dtype, static_cast<uint32_t>(keys[x])); };
    fit_poly_divide(b, s.sum, s.curve, n, positives, a.common, number);
    const uint32_t tiles = b.template once<uint32_t>([&] { return s.curve.tile[s.curve.segments]; });
    if (tile >= tiles) return;

    const auto y = [&](uint32_t x) {
      if (job.tell) static_cast<uint32_t*>(job.tell)[x] = positions[x];
      return number(x);
    };
    double* const sums = a.common.sums + uint64_t{job.first_tile} * (degree + 1);
    double* const own = sums + uint64_t{tile} * (degree + 1);
    fit_poly_sum(b, s.curve, s.sum, tile, degree, y, own);
    if (!last_of(b, &a.common.state[2 * job.key + 1], tiles)) return;
    fit_poly_write(b, s.curve, job, n, a.common, sums);
  }
};

// A whole job of at most fit_poly_small values.
template <class Args>
struct fit_poly_encode_small {
  static constexpr const char* name = "fit_poly_encode_small";
  static constexpr unsigned lanes = fit_poly_lanes, grid_phases = 1;
  using args = Args;
  struct shared {
    fit_poly_curve curve;
    fit_poly_rows sum;
    double sums[fit_poly_tiles_max(fit_poly_small, true) * fit_poly_columns];
    uint64_t sorted[fit_poly_small];  // key, position: ties by position
  };

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const tile_job& job = job_of_tile(a, b.index());
    const auto n = static_cast<uint32_t>(live_count(job));
    const uint32_t dtype = a.common.dtype, degree = a.common.degree;
    if (n == 0) return fit_poly_nothing(b, job, true);
    typename Block::template each<uint32_t> positive;
    const auto padded = static_cast<uint32_t>(bit_ceil(n));
    b.phase([&](unsigned lane) {
      positive[lane] = 0;
      for (uint32_t i = lane; i < padded; i += lanes) {
        const uint32_t key = i < n ? fit_poly_key(dtype, job.in, i) : ~uint32_t{0};
        positive[lane] += fit_poly_positive(dtype, key);
        s.sorted[i] = uint64_t{key} << 32 | i;
      }
    });
    const uint32_t positives = b.sum(positive);
    sort(b, s.sorted, padded);
    const auto number = [&](uint32_t x) { return fit_poly_number(dtype, static_cast<uint32_t>(s.sorted[x] >> 32)); };
    fit_poly_divide(b, s.sum, s.curve, n, positives, a.common, number);
    const uint32_t tiles = b.template once<uint32_t>([&] { return s.curve.tile[s.curve.segments]; });
    const auto y = [&](uint32_t x) {
      if (job.tell) static_cast<uint32_t*>(job.tell)[x] = static_cast<uint32_t>(s.sorted[x]);
      return number(x);
    };
    double* own = s.sums;
    for (uint32_t tile = 0; tile < tiles; ++tile, own += degree + 1)
      fit_poly_sum(b, s.curve, s.sum, tile, degree, y, own);
    const double* const sums = s.sums;
    fit_poly_write(b, s.curve, job, n, a.common, sums);
  }

  // Bitonic (Batcher 1968): n a power of two.
  template <class Block>
  DR_HD static void sort(Block& b, uint64_t (&x)[fit_poly_small], uint32_t n) {
    for (uint32_t run = 2; run <= n; run *= 2) {
      for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
        b.phase([&](unsigned lane) {
          for (uint32_t t = lane; t < n / 2; t += lanes) {
            const uint32_t i = 2 * t - (t & (apart - 1));
            const uint64_t low = x[i], high = x[i + apart];
            if ((low > high) == ((i & run) == 0)) {
              x[i] = high;
              x[i + apart] = low;
            }
          }
        });
      }
    }
  }
};

}  // namespace dr
