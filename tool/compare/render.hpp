// A document as a person, a spreadsheet or a program reads it.
#pragma once

#include <span>
#include <string>

#include "compare_options.hpp"
#include "report.hpp"

namespace dr::compare {

struct render_request {
  format form = format::table;
  run_facts facts;        // of the rows that were measured now
  bool sorted = false;    // the order of rows is what was asked for: no headings between them
  bool own_rows = false;  // the document's rows are those that were measured now, all of them
  std::string notes;      // on presets, under the table
};

// measured: the rows that were measured now.
std::string render(const nlohmann::ordered_json& document, std::span<const row> measured,
                   const render_request& request);

}  // namespace dr::compare
