// A sorted curve as pieces of discrete Chebyshev (Gram) polynomials (layout, segments and arithmetic: SPEC.md).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "primitive/gram.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned fit_poly_degree_max = 9;
inline constexpr uint64_t fit_poly_points_min = 31;  // of a piece that is not the remainder

// Parts of a side, as in the published GPU code: fine pieces where the curve bends most.
inline constexpr unsigned fit_poly_parts_count = 10;
DR_HD constexpr uint64_t fit_poly_part(unsigned i) {
  constexpr uint64_t parts[fit_poly_parts_count] = {5, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000};
  return parts[i];
}
inline constexpr unsigned fit_poly_segments_max = 2 * (fit_poly_parts_count + 2);  // the remainder, the extreme value
inline constexpr unsigned fit_poly_pieces_max = 64;                                // of a side, where knots are sent
inline constexpr unsigned fit_poly_all_segments_max = 2 * fit_poly_pieces_max;

// What the wire fields say.
struct fit_poly_form {
  unsigned degree;
  bool chord;  // the payload tells where pieces end; else they are fractions of their side
  bool order;  // one curve of magnitudes, with a sign bit for each; else a curve for each sign
};

// Lengths of the segments of a curve of n values, the first `positives` of one sign. Returns how many there are.
DR_HD inline unsigned fit_poly_segments(uint64_t n, uint64_t positives, uint64_t* length) {
  unsigned count = 0;
  for (int side = 0; side < 2; ++side) {
    const uint64_t total = side == 0 ? positives : n - positives;
    if (total == 0) continue;
    // Towards the extreme: the remainder, pieces by decreasing length, the extreme value.
    uint64_t piece[fit_poly_parts_count + 2];
    unsigned pieces = 1;
    piece[0] = total;
    for (unsigned i = 0; i < fit_poly_parts_count && total / fit_poly_part(i) >= fit_poly_points_min; ++i) {
      piece[pieces] = total / fit_poly_part(i);
      piece[0] -= piece[pieces++];
    }
    if (total >= fit_poly_points_min) {
      --piece[pieces - 1];
      piece[pieces++] = 1;
    }
    for (unsigned i = 0; i < pieces; ++i) length[count++] = piece[side == 0 ? pieces - 1 - i : i];
  }
  return count;
}

// Bytes of a payload of n values at most: a segment has degree + 1 coefficients, and never more than points; where knots are
// sent, a length takes no more bytes than n would.
constexpr uint64_t fit_poly_size_max(uint64_t n, const fit_poly_form& form) {
  const unsigned sides = form.order ? 1 : 2;
  const uint64_t signs = form.order ? ceil_div(n, 8) : 4;
  const unsigned pieces = sides * (form.chord ? fit_poly_pieces_max : fit_poly_segments_max / 2);
  const uint64_t coefficients = uint64_t{pieces} * (form.degree + 1);
  const uint64_t knots = form.chord ? sides + (pieces - sides) * ceil_div(bit_width(n), 7) : 0;
  return signs + knots + 4 * (n < coefficients ? n : coefficients);
}

DR_HD constexpr unsigned fit_poly_coefficients(uint64_t points, unsigned degree) {
  return points - 1 < degree ? static_cast<unsigned>(points) : degree + 1;
}

// Least squares of y(0 … points-1); coefficients [fit_poly_coefficients].
template <class F>
void fit_poly_fit(uint64_t points, unsigned degree, F&& y, float* coefficients) {
  const unsigned count = fit_poly_coefficients(points, degree);
  double b[fit_poly_degree_max + 1] = {}, p[fit_poly_degree_max + 1];
  for (unsigned j = 1; j < count; ++j) b[j] = gram_b(points, j);
  for (unsigned j = 0; j < count; ++j) {
    const double sum = tree_sum(points, [&](uint64_t x) {
      gram_basis(x, points, count, b, p);
      return y(x) * p[j];
    });
    coefficients[j] = gram_coefficient(sum, points, j, b);
  }
}

// Calls each(x, y) for every point.
template <class F>
void fit_poly_eval(uint64_t points, unsigned degree, const float* coefficients, F&& each) {
  const unsigned count = fit_poly_coefficients(points, degree);
  double b[fit_poly_degree_max + 1] = {};
  for (unsigned j = 1; j < count; ++j) b[j] = gram_b(points, j);
  for (uint64_t x = 0; x < points; ++x) each(x, gram_at(x, points, count, b, coefficients));
}

// Ascending in this key is: sign clear first, then by descending value. The key of the key is the value.
template <class T>
DR_HD constexpr uint32_t fit_poly_sort_key(typename T::bits b) {
  constexpr uint32_t sign = uint32_t{T::magnitude_mask} + 1;
  return b & sign ? b : T::magnitude_mask - b;
}

// The number of pieces that the paper has for a sorted curve of n > 0 points (Xu et al. 2021, section 5): M is the total
// variation of its slope, 2√M pieces of lines keep the error below 1/2. It depends on the scale of the values.
template <class F>
unsigned fit_poly_pieces_of_paper(uint64_t n, unsigned degree, F&& y) {
  if (n < 3) return 1;
  const double m = std::fabs((y(0) - y(1)) - (y(n - 2) - y(n - 1)));
  const double pieces = degree == 0 ? std::ceil(m / std::sqrt(2.0) - 1) : std::ceil(2 * std::sqrt(m));
  return pieces < 1 ? 1 : pieces > fit_poly_pieces_max ? fit_poly_pieces_max : static_cast<unsigned>(pieces);
}

// Cuts a curve of n > 0 points, one after the other, where it is farthest from the chord of the piece that it is in, until
// there are `wanted` pieces or none can be cut: both parts have at least degree + 1 points. Returns how many there are.
template <class F>
unsigned fit_poly_chords(uint64_t n, unsigned degree, unsigned wanted, F&& y, uint64_t* length) {
  struct piece {
    uint64_t begin, points, knot;
    double distance;  // squared; 0: is not cut
  } pieces[fit_poly_pieces_max];
  const uint64_t least = degree + 1;
  const auto measured = [&](uint64_t begin, uint64_t points) {
    piece p{begin, points, 0, 0};
    if (points < 2 * least) return p;
    const double first = y(begin), slope = (y(begin + points - 1) - first) / static_cast<double>(points - 1);
    for (uint64_t x = least; x <= points - least; ++x) {
      const double off = y(begin + x) - (first + slope * static_cast<double>(x));
      if (off * off <= p.distance) continue;
      p.distance = off * off;
      p.knot = x;
    }
    return p;
  };
  unsigned count = 1;
  pieces[0] = measured(0, n);
  while (count < wanted) {
    unsigned worst = 0;
    for (unsigned i = 1; i < count; ++i)
      if (pieces[i].distance > pieces[worst].distance) worst = i;
    const piece cut = pieces[worst];
    if (cut.distance == 0) break;
    for (unsigned i = count++; i > worst + 1; --i) pieces[i] = pieces[i - 1];
    pieces[worst] = measured(cut.begin, cut.knot);
    pieces[worst + 1] = measured(cut.begin + cut.knot, cut.points - cut.knot);
  }
  for (unsigned i = 0; i < count; ++i) length[i] = pieces[i].points;
  return count;
}

}  // namespace dr
