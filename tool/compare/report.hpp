// The table of rows of a few tensors.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "link_model.hpp"
#include "row.hpp"

namespace dr::compare {

struct run_facts {
  uint32_t ranks = 0;
  std::string link_text;  // of the command line; "": none
  std::span<const failure> failures;
};

std::string table_report(std::span<const row> rows, const run_facts& run);  // at most 140 columns

}  // namespace dr::compare
