// Rows of a few tensors as a person reads them.
#pragma once

#include <span>
#include <string>

#include "row.hpp"

namespace dr::compare {

std::string table_report(std::span<const row> rows, uint32_t ranks);  // at most 140 columns; see break_even_speed

}  // namespace dr::compare
