// A sorted curve as pieces of discrete Chebyshev (Gram) polynomials (layout, segments and arithmetic: SPEC.md).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codecs/family/fits/gram.hpp"
#include "primitive/sum_tree.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr unsigned fit_poly_degree_max = 9;

// Parts of a side, as in the published GPU code: fine pieces where the curve bends most.
inline constexpr unsigned fit_poly_parts_count = 10;
DR_HD constexpr uint64_t fit_poly_part(unsigned i) {
  constexpr uint64_t parts[fit_poly_parts_count] = {5, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000};
  return parts[i];
}
// Of a side: those, the remainder, the two extreme values; and the two halves of the middle.
inline constexpr unsigned fit_poly_segments_max = 2 * (fit_poly_parts_count + 3) + 2;
inline constexpr unsigned fit_poly_pieces_max = 64;  // of a side, where knots are sent
inline constexpr unsigned fit_poly_all_segments_max = 2 * fit_poly_pieces_max;

// Where pieces end: at fractions of their side; at lengths in the payload; at fractions, but values about zero, after a
// jump, are pieces of their own.
enum fit_poly_knots : unsigned { fit_poly_fractions, fit_poly_chord, fit_poly_jump };

// The wire fields, decoded.
struct fit_poly_form {
  unsigned degree;
  fit_poly_knots knots;
  bool order;  // one curve of magnitudes, with a sign bit per value; else a curve per sign

  DR_HD constexpr unsigned coefficient_size() const { return knots == fit_poly_jump ? 2 : 4; }
};

// Values of a curve in their order: of one sign, those about zero (with fit_poly_jump), of the other.
struct fit_poly_sides {
  uint64_t positives, middle, negatives;
};

// Points of a piece that is not the remainder, and of a side that has extreme values of their own; how many these are.
DR_HD constexpr uint64_t fit_poly_points_min(bool jump) { return jump ? 16 : 31; }
DR_HD constexpr unsigned fit_poly_extremes(bool jump) { return jump ? 2 : 1; }

// Writes the lengths of the segments. Returns their number.
DR_HD inline unsigned fit_poly_segments(const fit_poly_sides& n, bool jump, uint64_t* length) {
  unsigned count = 0;
  const uint64_t least = fit_poly_points_min(jump);
  for (int side = 0; side < 2; ++side) {
    const uint64_t total = side == 0 ? n.positives : n.negatives;
    if (total) {
      // Towards the extreme: the remainder, pieces by decreasing length, the extreme values.
      uint64_t piece[fit_poly_parts_count + 3];
      unsigned pieces = 1;
      piece[0] = total;
      for (unsigned i = 0; i < fit_poly_parts_count && total / fit_poly_part(i) >= least; ++i) {
        piece[pieces] = total / fit_poly_part(i);
        piece[0] -= piece[pieces++];
      }
      if (total >= least) {
        const unsigned extremes = fit_poly_extremes(jump);
        piece[pieces - 1] -= extremes;
        for (unsigned i = 0; i < extremes; ++i) piece[pieces++] = 1;
      }
      for (unsigned i = 0; i < pieces; ++i) length[count++] = piece[side == 0 ? pieces - 1 - i : i];
    }
    if (side == 0 && n.middle / 2) length[count++] = n.middle / 2;
    if (side == 0 && n.middle) length[count++] = n.middle - n.middle / 2;
  }
  return count;
}

// Bytes of a payload of n values at most: a segment has degree + 1 coefficients, and never more than points; where
// knots are sent, a length needs no more bytes than n.
constexpr uint64_t fit_poly_size_max(uint64_t n, const fit_poly_form& form) {
  const bool chord = form.knots == fit_poly_chord, jump = form.knots == fit_poly_jump;
  const unsigned sides = form.order ? 1 : 2;
  const uint64_t signs = form.order ? ceil_div(n, 8) : 4;
  const unsigned of_side = chord ? fit_poly_pieces_max : fit_poly_parts_count + 1 + fit_poly_extremes(jump);
  const unsigned pieces = sides * of_side + (jump ? 2 : 0);
  const uint64_t coefficients = uint64_t{pieces} * (form.degree + 1);
  const uint64_t knots = chord ? sides + (pieces - sides) * ceil_div(bit_width(n), 7) : jump ? 4 : 0;
  return signs + knots + form.coefficient_size() * (n < coefficients ? n : coefficients);
}

DR_HD constexpr unsigned fit_poly_coefficients(uint64_t points, unsigned degree) {
  return points - 1 < degree ? static_cast<unsigned>(points) : degree + 1;
}

// Least squares of y(0 … points-1), coefficients of type T; [fit_poly_coefficients].
template <class T, class F>
void fit_poly_fit(uint64_t points, unsigned degree, F&& y, typename T::bits* coefficients) {
  const unsigned count = fit_poly_coefficients(points, degree);
  double b[fit_poly_degree_max + 1] = {}, p[fit_poly_degree_max + 1];
  for (unsigned j = 1; j < count; ++j) b[j] = gram_b(points, j);
  for (unsigned j = 0; j < count; ++j) {
    const double sum = tree_sum(points, [&](uint64_t x) {
      gram_basis(x, points, count, b, p);
      return y(x) * p[j];
    });
    coefficients[j] = gram_coefficient<T>(sum, points, j, b);
  }
}

// Calls visit(x, y) for every point.
template <class F>
void fit_poly_eval(uint64_t points, unsigned degree, const float* coefficients, F&& visit) {
  const unsigned count = fit_poly_coefficients(points, degree);
  double b[fit_poly_degree_max + 1] = {};
  for (unsigned j = 1; j < count; ++j) b[j] = gram_b(points, j);
  for (uint64_t x = 0; x < points; ++x) visit(x, gram_at(x, points, count, b, coefficients));
}

// Ascending in this key is: sign clear first, then by descending value. The key of the key is the value.
template <class T>
DR_HD constexpr uint32_t fit_poly_sort_key(typename T::bits b) {
  constexpr uint32_t sign = uint32_t{T::magnitude_mask} + 1;
  return b & sign ? b : T::magnitude_mask - b;
}

// The number of pieces that the paper has for a sorted curve of n > 0 points (Xu et al. 2021, section 5): M is the
// total variation of its slope, 2√M pieces of lines keep the error below 1/2. It depends on the scale of the values.
template <class F>
unsigned fit_poly_pieces_of_paper(uint64_t n, unsigned degree, F&& y) {
  if (n < 3) return 1;
  const double m = std::fabs((y(0) - y(1)) - (y(n - 2) - y(n - 1)));
  const double pieces = degree == 0 ? std::ceil(m / std::sqrt(2.0) - 1) : std::ceil(2 * std::sqrt(m));
  return pieces < 1 ? 1 : pieces > fit_poly_pieces_max ? fit_poly_pieces_max : static_cast<unsigned>(pieces);
}

// ---- Behind a jump ------------------------------------------------------------------------------------------

// Of a falling curve of n points: how far point x lies above the chord from a quarter of the points to the last.
struct fit_poly_chord_of {
  uint32_t begin;
  double first, slope;

  template <class F>
  DR_HD static fit_poly_chord_of curve(uint32_t n, F&& y) {
    const uint32_t begin = n / 4;
    const double first = y(begin);
    return {begin, first, n > 1 ? (y(n - 1) - first) / static_cast<double>(n - 1 - begin) : 0};
  }
  DR_HD double above(uint32_t x, double y) const { return y - (first + slope * static_cast<double>(x - begin)); }
  // Above it there is nothing unless the curve falls more steeply at its end than before. Less than an eighth is no
  // jump: the curve of selected values alone has none.
  DR_HD bool is_jump(uint32_t x, double y) const { return above(x, y) > y / 8; }
};

// The points in which the highest above the chord is looked for: one in `step`, in turns that come nearer.
struct fit_poly_search {
  static constexpr uint32_t points_max = 1024;
  uint32_t low, high, step;

  DR_HD static fit_poly_search between(uint32_t low, uint32_t high) {
    return {low, high, (high - low) / points_max + 1};
  }
  DR_HD bool is_last() const { return step == 1; }
  DR_HD fit_poly_search around(uint32_t best) const {
    return between(best - low > step ? best - step : low, high - best > step ? best + step : high);
  }
};

// How many of a falling curve's n > 0 points (below 2^32, as of any stream), the last ones, are after a jump; 0 if
// there is none.
template <class F>
uint32_t fit_poly_behind_jump(uint32_t n, F&& y) {
  const auto chord = fit_poly_chord_of::curve(n, y);
  for (auto s = fit_poly_search::between(chord.begin, n - 1);;) {
    uint32_t best = s.low;
    double largest = chord.above(best, y(best));
    for (uint32_t k = 1; k <= (s.high - s.low) / s.step; ++k) {
      const uint32_t x = s.low + k * s.step;
      const double now = chord.above(x, y(x));
      if (now <= largest) continue;
      largest = now;
      best = x;
    }
    if (s.is_last()) return chord.is_jump(best, y(best)) ? n - 1 - best : 0;
    s = s.around(best);
  }
}

// ---- Chords -------------------------------------------------------------------------------------------------

// Cuts a curve of n > 0 points, at `jump` if that is not 0 and then one after the other, where it is farthest from the
// chord of the piece that it is in, until there are `requested` pieces or none can be cut: both parts have at least degree
// + 1 points. Returns their number.
template <class F>
unsigned fit_poly_chords(uint64_t n, uint64_t jump, unsigned degree, unsigned requested, F&& y, uint64_t* length) {
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
  if (jump && requested > 1) {
    pieces[0] = measured(0, jump);
    pieces[count++] = measured(jump, n - jump);
  }
  while (count < requested) {
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
