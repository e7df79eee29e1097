// The bounds of a batch's rows, from shapes and plans alone, without data.
#pragma once

#include "pipeline/batch.hpp"

namespace dr {

// Adds the rows of a unit, one per segment, with their plans, needs and bounds.
dr_status add_unit_rows(batch& out, unit& u, dr_error& error);

// The longest header of a batch in which auto chooses plans; `all`: the layout with all plans that it may choose.
uint64_t header_bound(const batch& b, const header_layout& all);

}  // namespace dr
