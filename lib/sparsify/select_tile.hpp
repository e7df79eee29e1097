// Selection of elements on a GPU: exact Top-r with one read of the gradient, thresholds, nonzeros, and sparse input.
//
//   solve     all of a small tensor, by one block (solve_most)
//   bracket   a sample of a larger tensor brackets the r-th magnitude in [lo, hi]
//   filter    the read: lists candidates (key >= lo) and their values tile by tile; counts those in [lo, hi] in 2048 bins
//   refine    finds the exact threshold in the bin of rank r; other blocks order the tiles
//   compact   writes support and values: the candidates in the order of the tiles, cut at the threshold
//   survey    all elements, with their values where they are: counts those that are not zero; nothing is listed
//   fallback  if the estimate of the sample failed (constant or adversarial data): radix over all elements
//
// Proof that bytes never depend on the sample: refine accepts only if count(> hi) < r <= count(>= lo) and all
// candidates were listed; then the r-th largest key is in [lo, hi] and is found exactly among them. Otherwise the
// radix finds the same key. If lo is 1 and fewer than r candidates were listed, these are all nonzeros, and all are
// selected.
#pragma once

#include "sparsify/select_adopt_tile.hpp"
#include "sparsify/select_bracket_tile.hpp"
#include "sparsify/select_chunks_tile.hpp"
#include "sparsify/select_compact_tile.hpp"
#include "sparsify/select_draw_tile.hpp"
#include "sparsify/select_fallback_tile.hpp"
#include "sparsify/select_filter_tile.hpp"
#include "sparsify/select_refine_tile.hpp"
#include "sparsify/select_solve_tile.hpp"
#include "sparsify/select_survey_tile.hpp"
