// What a sparsifier keeps, as the library says: the reference that a round trip is checked against.
#pragma once

#include <string>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "tool/read/inputs.hpp"

namespace dr::compare {

// Ascending positions that a stage, "sparsify=…", keeps of a dense tensor in a call (seeds, step; nullptr: all zero).
// position: of the tensor in its batch, which names it in random numbers.
std::vector<uint64_t> kept_by(context& c, const std::string& sparsify, const tensor& g, const dr_call* call = nullptr,
                              uint64_t position = 0);

}  // namespace dr::compare
