// The positions that a sparsifier selects, by the library itself: the reference for round trips.
#pragma once

#include <string>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "tool/read/inputs.hpp"

namespace dr::compare {

// Ascending positions that a stage "sparsify=…" selects in a dense tensor, for the seeds and step of `call` (nullptr: all
// zero). position: of the tensor in its batch, which enters its random draws.
std::vector<uint64_t> selected_by(context& c, const std::string& sparsify, const tensor& g,
                                  const dr_call* call = nullptr, uint64_t position = 0);

}  // namespace dr::compare
