// Histograms of a sparsifier's selection: gaps and magnitudes.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "tool/read/subjects.hpp"

namespace dr::compare {

// An entry of `subjects` in the document. s: the dense tensors, d elements in all; selected: the ascending positions in
// each tensor, r in all.
//   {input, tensor, dtype, d, sparsify, r,
//    gradient_energy, kept_energy    sums of squares of all and of the selected values; null if not finite
//    gaps:        {log2: [n]}  n[k] of the gaps are in [2^k, 2^(k+1)); a gap is the distance to the previous selected position,
//                              or to -1 for a tensor's first. Sum: r
//    magnitudes:  {log2_first: e, counts: [n], zeros, not_finite}   n[i] of the selected values have a magnitude in
//                              [2^(e+i), 2^(e+i+1)). Sum with zeros and not_finite: r}
// Lists end with their last nonzero number.
nlohmann::ordered_json subject_facts(const subject& s, std::string_view sparsify,
                                     const std::vector<std::vector<uint64_t>>& selected);

}  // namespace dr::compare
