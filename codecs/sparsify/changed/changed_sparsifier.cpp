// sparsify=changed (SPEC.md). The pipeline compares: lib/patch/word_diff.hpp.
#include "codecs/sparsifiers.hpp"

namespace dr {
namespace {

constexpr dr_param changed_params[] = {
    param_real("max_ratio", "the tensor is sent dense if more than this share of its rows differs", 0, 1, 1)};

uint64_t dense_above(const dr_params& params, uint64_t universe) { return share_of(params, 0, universe); }

bool keeps_all(const dr_params&) { return true; }

}  // namespace

constinit const sparsifier changed_sparsifier = {
    .entry =
        sparsifier_entry("changed", "selects the rows whose bits differ from the base: a patch", 7, changed_params),
    .keep = nullptr,
    .dense_above = dense_above,
    .keeps_all = keeps_all,
    .passes_on = true,
    .patches = true};

}  // namespace dr
