// Rows of a few tensors as a person reads them.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "link_model.hpp"
#include "row.hpp"

namespace dr::compare {

struct run_facts {
  uint32_t ranks = 0;
  std::string link_text;  // as it was given; "": none
  std::span<const failure> failures;
};

std::string table_report(std::span<const row> rows, const run_facts& run);  // at most 140 columns

}  // namespace dr::compare
