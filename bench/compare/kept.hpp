// What a sparsifier keeps, worked out without the library: the reference that a round trip is checked against.
#pragma once

#include <optional>
#include <vector>

#include "inputs.hpp"
#include "plan_text.hpp"

namespace dr::compare {

// Ascending positions; `seed` as in dr_call, step 0, the only tensor. Nothing for a sparsifier that this file does not know.
std::optional<std::vector<uint64_t>> kept_by(const plan_stage& sparsify, const tensor& g, uint64_t seed = 0);

uint64_t count_nonzeros(const tensor& g);  // elements that are not zero, of either sign, as sparsify=none keeps them

}  // namespace dr::compare
