// The tiles of a tensor, and the order of their coefficients (FORMAT.md, Transforms).
#pragma once

#include <bit>
#include <cstdint>

#include "primitive/tile_form.hpp"

namespace dr {

// A piece of a dimension of n elements: as many as fit have `size` elements; the rest is cut by its binary digits, the
// largest first, so that every piece has a power of two.
struct tile_piece {
  uint64_t first;
  uint32_t n;
};

struct tile_axis {
  uint64_t n, whole;  // elements, and whole pieces
  uint32_t size, rest;

  tile_axis(uint64_t elements, uint32_t of_size)
      : n(elements), whole(elements / of_size), size(of_size), rest(static_cast<uint32_t>(elements % of_size)) {}
  uint64_t pieces() const { return whole + static_cast<uint32_t>(std::popcount(rest)); }
  tile_piece piece(uint64_t k) const {
    if (k < whole) return {k * size, size};
    uint32_t left = rest;
    for (uint64_t i = whole; i < k; ++i) left ^= std::bit_floor(left);
    return {n - left, std::bit_floor(left)};
  }
};

struct tile {
  tile_piece rows, columns;
  uint64_t at;  // of its coefficients
};

// The tiles of a matrix, numbered row by row. Coefficients of whole tiles come first, so that each of them is one chunk of
// size * size elements; then those of the others.
struct tile_grid {
  tile_axis rows, columns;

  tile_grid(uint64_t elements, const tile_form& form)
      : rows(form.columns ? elements / form.columns : 1, form.columns ? form.size() : 1),
        columns(form.columns ? form.columns : elements, form.size()) {}

  uint64_t tiles() const { return rows.pieces() * columns.pieces(); }
  tile operator[](uint64_t k) const {
    const uint64_t i = k / columns.pieces(), j = k % columns.pieces();
    tile t{rows.piece(i), columns.piece(j), 0};
    const uint64_t area = uint64_t{rows.size} * columns.size;
    if (i < rows.whole && j < columns.whole)
      t.at = (i * columns.whole + j) * area;
    else if (i < rows.whole)
      t.at = rows.whole * columns.whole * area + i * rows.size * columns.rest +
             rows.size * (t.columns.first - columns.whole * columns.size);
    else
      t.at = t.rows.first * columns.n + uint64_t{t.rows.n} * t.columns.first;
    return t;
  }
};

}  // namespace dr
