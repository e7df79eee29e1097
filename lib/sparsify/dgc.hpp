// sparsify=dgc: about `target` of the largest magnitudes, never zeros, from a threshold that a sample tells (Deep Gradient
// Compression, Lin et al. 2018, with GRACE's bounds): exact where it is not needed costs more than it gives.
//   1. Of n values m are looked at, one drawn of each stretch ⌊n·i/m⌋ … ⌊n·(i+1)/m⌋; the threshold is the magnitude of the largest but
//      max(1, ⌊target·m / n⌋) − 1 of these.
//   2. As long as fewer than ⌈0.7·target⌉ reach it, at most ten times, the threshold becomes 0.7 of itself.
//   3. If more than ⌊1.3·target⌋ reach it, the `target` largest are kept, exactly, ties by lower index (the paper's second selection, in
//      the place of GRACE's raised thresholds, so that there is a bound). Otherwise, all that reach it.
#pragma once

#include <cstdint>

#include "sparsify/select.hpp"

namespace dr {

// Most and fewest that are kept without a second look.
constexpr uint64_t dgc_most(uint64_t target) { return target + 3 * target / 10; }
constexpr uint64_t dgc_fewest(uint64_t target) { return target - 3 * target / 10; }

// m = ⌊share·n + 1e-9⌋, but at least 1024 (fewer tell nothing of a hundredth) and at most n: then all is exact.
uint64_t dgc_sample(double share, uint64_t n);

// sample: dgc_sample numbers. crew: as keep_largest wants it for `target`. Room for dgc_most(target).
kept_count keep_dgc(const select_source& source, uint64_t key, uint64_t target, double share, uint32_t* sample,
                    const select_memory& memory, const select_crew& crew);

}  // namespace dr
