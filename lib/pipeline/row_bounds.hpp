// How long the rows of a batch can become: from shapes and plans alone, before any data is seen.
#pragma once

#include "pipeline/batch.hpp"

namespace dr {

// Adds the rows of a unit, one a segment, with their plans, needs and bounds.
dr_status add_rows(batch& out, unit& u, dr_error& error);

// The longest header of a batch in which auto chooses plans; `all`: the layout with every plan that it may choose.
uint64_t header_bound(const batch& b, const header_layout& all);

}  // namespace dr
