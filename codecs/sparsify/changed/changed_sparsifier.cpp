// sparsify=changed (SPEC.md). The pipeline compares: lib/patch/word_diff.hpp.
#include "codecs/sparsifiers.hpp"

namespace dr {
namespace {

bool keeps_all(const dr_params&) { return true; }

}  // namespace

constinit const sparsifier changed_sparsifier = {
    .entry = sparsifier_entry("changed", "selects the rows whose bits differ from the base: a patch", 7, {}),
    .keep = nullptr,
    .keeps_all = keeps_all,
    .passes_on = true,
    .patches = true};

}  // namespace dr
