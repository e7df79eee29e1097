// What a sparsifier kept, in counts: the gaps and magnitudes that codecs live on.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "inputs.hpp"

namespace dr::compare {

// An entry of `subjects` in the document. g: the dense tensor, d elements; kept [r]: positions, ascending, below d.
//   {input, tensor, dtype, d, sparsify, r,
//    gradient_energy, kept_energy    sums of squares of g and of its kept values; null if not finite
//    gaps:        {log2: [n]}  n[k] of the gaps are in [2^k, 2^(k+1)); a gap is the distance to the kept position before,
//                              of the first to -1. Sum: r
//    magnitudes:  {log2_first: e, counts: [n], zeros, not_finite}   n[i] of the kept values have a magnitude in
//                              [2^(e+i), 2^(e+i+1)). Sum with zeros and not_finite: r}
// Lists end with their last number that is not 0.
nlohmann::ordered_json subject_facts(const tensor& g, std::string_view sparsify, std::span<const uint64_t> kept);

}  // namespace dr::compare
