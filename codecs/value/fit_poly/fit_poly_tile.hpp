// value=fit_poly on a GPU: shared by encode and decode, mainly the curve.
#pragma once

#include <cstdint>

#include "codecs/value/fit_poly/fit_poly_kernel.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline constexpr unsigned fit_poly_lanes = 256;
inline constexpr uint32_t fit_poly_small = 2048;        // values of a job that one block sorts
inline constexpr uint32_t fit_poly_keys_tile = 2048;    // values of a block
inline constexpr uint32_t fit_poly_decode_tile = 1024;  // values of a block
inline constexpr unsigned fit_poly_columns = fit_poly_degree_max + 1;
// Of a side's segments the extreme values have one coefficient each.
inline constexpr unsigned fit_poly_coefficients_max =
    2 * ((fit_poly_parts_count + 1) * fit_poly_columns + 2) + 2 * fit_poly_columns;
static_assert(fit_poly_coefficients_max <= fit_poly_lanes, "a lane a coefficient");
static_assert(sum_tile == 4 * fit_poly_lanes);

// Tiles of the sum tree in the segments of up to n values: beside full tiles, at most one a segment.
constexpr uint64_t fit_poly_tiles_max(uint64_t n, bool jump) {
  unsigned parts = 0;
  while (parts < fit_poly_parts_count && n / fit_poly_part(parts) >= fit_poly_points_min(jump)) ++parts;
  const uint64_t tiles = n / sum_tile + 2 * (parts + 1 + fit_poly_extremes(jump)) + (jump ? 2 : 0);
  return n < tiles ? n : tiles;
}

struct fit_poly_common {
  uint32_t dtype, degree;
  fit_poly_knots knots;  // not fit_poly_chord
  // The jobs that are sorted together, one after another, with room for their count_max. A job's `extra` is
  // the position of its first pair, its `key` its number among these jobs.
  uint64_t* keys;
  uint32_t* positions;
  double* sums;     // degree + 1 a tile
  uint32_t* state;  // two a job: positives, tiles done
};

// Layout of a curve, from its sides and degree: points, coefficients and tiles before a segment, and in all.
struct fit_poly_curve {
  uint32_t positives, middle, segments;
  uint32_t first[fit_poly_segments_max + 1];
  uint32_t coefficient[fit_poly_segments_max + 1];
  uint32_t tile[fit_poly_segments_max + 1];
  double b[fit_poly_segments_max][fit_poly_columns];  // B_j; B_0 = 0

  DR_HD uint32_t points(uint32_t segment) const { return first[segment + 1] - first[segment]; }
};

// Where a lane adds up; before that the rows 0 and 1 are for what it finds of a jump, the height and the point.
using fit_poly_rows = double[fit_poly_columns][fit_poly_lanes];

// The segment that holds x: the last with start[segment] <= x.
DR_HD inline uint32_t fit_poly_segment(const uint32_t* start, uint32_t segments, uint32_t x) {
  uint32_t low = 0, high = segments;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (start[middle] <= x)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// A job without values, or with a fault.
template <class Block>
DR_HD void fit_poly_nothing(Block& b, const tile_job& job, bool first) {
  b.phase([&](unsigned lane) {
    if (first && lane == 0 && job.fault->code == DR_OK) *job.out_size = 0;
  });
}

// Makes the curve of n > 0 values; positives + middle <= n. (Here and below arguments are references, so that a phase
// may outlive the call: tests leave barriers out.)
template <class Block>
DR_HD void fit_poly_measure(Block& b, fit_poly_curve& c, const uint32_t& n, const uint32_t& positives,
                            const uint32_t& middle, const fit_poly_common& common) {
  b.phase([&](unsigned lane) {
    if (lane != 0) return;
    uint64_t length[fit_poly_segments_max];
    c.positives = positives;
    c.middle = middle;
    c.segments =
        fit_poly_segments({positives, middle, uint64_t{n} - positives - middle}, common.knots == fit_poly_jump, length);
    uint32_t first = 0, coefficient = 0, tile = 0;
    for (uint32_t s = 0; s <= c.segments; ++s) {
      c.first[s] = first;
      c.coefficient[s] = coefficient;
      c.tile[s] = tile;
      if (s == c.segments) break;
      first += static_cast<uint32_t>(length[s]);
      coefficient += fit_poly_coefficients(length[s], common.degree);
      tile += static_cast<uint32_t>(ceil_div(length[s], sum_tile));
    }
  });
  b.phase([&](unsigned lane) {
    for (unsigned i = lane; i < c.segments * fit_poly_columns; i += fit_poly_lanes) {
      const unsigned s = i / fit_poly_columns, j = i % fit_poly_columns;
      c.b[s][j] = j == 0 ? 0 : gram_b(c.points(s), j);
    }
  });
}

}  // namespace dr
