// The built-in sparsifiers, one a folder.
#pragma once

#include "sparsify/sparsifier.hpp"

namespace dr {

extern const sparsifier none_sparsifier, topr_sparsifier, threshold_sparsifier, random_sparsifier, dgc_sparsifier,
    blocks_sparsifier, adaq_sparsifier, changed_sparsifier, chunks_sparsifier, visible_sparsifier;

}  // namespace dr
