// Deep Gradient Compression's selection (SPEC.md).
#pragma once

#include <cstdint>

#include "sparsify/select.hpp"

namespace dr {

// Limits on the selected number without a correction.
constexpr uint64_t dgc_most(uint64_t target) { return target + 3 * target / 10; }
constexpr uint64_t dgc_fewest(uint64_t target) { return target - 3 * target / 10; }

// Default number of corrections of a threshold that selects too few.
inline constexpr uint32_t dgc_corrections = 10;

// m = ⌊share·n + 1e-9⌋, but at least 1024 (fewer cannot estimate a hundredth) and at most n: then all is exact.
uint64_t dgc_sample(double share, uint64_t n);

// sample: dgc_sample numbers. crew: as keep_largest requires for `target`. Room for dgc_most(target); without
// corrections, for all.
selection_result keep_dgc(const select_source& source, uint64_t key, uint64_t target, double share, uint32_t* sample,
                          const select_memory& memory, const select_crew& crew, uint32_t corrections = dgc_corrections);

}  // namespace dr
