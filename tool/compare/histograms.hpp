// What a sparsifier kept, in counts: the gaps and magnitudes that codecs live on.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "tool/read/subjects.hpp"

namespace dr::compare {

// An entry of `subjects` in the document. s: the dense tensors, d elements together; kept: of each tensor its positions,
// ascending, r together.
//   {input, tensor, dtype, d, sparsify, r,
//    gradient_energy, kept_energy    sums of squares of all and of the kept values; null if not finite
//    gaps:        {log2: [n]}  n[k] of the gaps are in [2^k, 2^(k+1)); a gap is the distance to the kept position before,
//                              of a tensor's first to -1. Sum: r
//    magnitudes:  {log2_first: e, counts: [n], zeros, not_finite}   n[i] of the kept values have a magnitude in
//                              [2^(e+i), 2^(e+i+1)). Sum with zeros and not_finite: r}
// Lists end with their last number that is not 0.
nlohmann::ordered_json subject_facts(const subject& s, std::string_view sparsify,
                                     const std::vector<std::vector<uint64_t>>& kept);

}  // namespace dr::compare
