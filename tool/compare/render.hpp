// A document as text, CSV, JSON, Markdown or HTML.
#pragma once

#include <span>
#include <string>

#include "compare_options.hpp"
#include "report.hpp"

namespace dr::compare {

struct render_request {
  format form = format::table;
  run_facts facts;        // of the new rows
  bool sorted = false;    // --sort sets the order of rows: no headings between them
  bool own_rows = false;  // the document's rows are exactly the new rows
  std::string notes;      // on presets, below the table
};

// measured: the new rows.
std::string render(const nlohmann::ordered_json& document, std::span<const row> measured,
                   const render_request& request);

}  // namespace dr::compare
