// Selection of elements on a GPU: exact Top-r with one read of the gradient, thresholds, nonzeros, and the input that
// arrives sparse.
//
//   bracket   a sample brackets the r-th magnitude in [lo, hi]; tensors of up to 8192 elements are solved outright
//   filter    the read: candidates (key >= lo) and their values are noted tile by tile; those in [lo, hi] are counted in
//   2048 bins
//   refine    the bin of rank r, and in it the exact threshold; and, in other blocks, an order of tiles
//   compact   candidates in the order of tiles, cut at the threshold: support and values
//   fallback  if the estimate of the sample failed (constant or adversarial data): radix over all elements, in one
//   cooperative launch
//
// Proof that bytes never depend on the sample: refine accepts only if count(> hi) < r <= count(>= lo) and all
// candidates were noted; then the r-th largest key lies in [lo, hi] and is found exactly among them. Otherwise the
// radix finds the same key. If lo is 1 and fewer than r candidates were noted, they are all that is not zero, and all
// are kept.
#pragma once

#include "sparsify/select_adopt_tile.hpp"
#include "sparsify/select_bracket_tile.hpp"
#include "sparsify/select_compact_tile.hpp"
#include "sparsify/select_fallback_tile.hpp"
#include "sparsify/select_filter_tile.hpp"
#include "sparsify/select_refine_tile.hpp"
