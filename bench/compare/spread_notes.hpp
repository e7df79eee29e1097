// What a table's times do not tell apart.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "row.hpp"

namespace dr::compare {

struct named_row {
  std::string name;
  const row* of;
};

// Sentences, none if there is nothing to warn of: too few rounds for a spread; spreads above a quarter; plans whose times
// differ by less than the spread.
std::vector<std::string> spread_notes(std::span<const named_row> rows);

}  // namespace dr::compare
