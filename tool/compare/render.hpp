// A document as text, CSV, JSON or Markdown.
#pragma once

#include <string>

#include "compare_options.hpp"
#include "summary.hpp"

namespace dr::compare {

struct render_request {
  format form = format::table;
  bool wide = false;      // all columns, and a row for every tensor
  bool sorted = false;    // --sort sets the order of rows
  bool asked = false;     // --where, --sort or --pareto chose the rows, so they are shown
  bool answers = false;   // of --best only its answers
  bool together = false;  // all inputs in one table: their sums
  bool bold = false;      // for a terminal
  size_t width = 80;      // of a line
  link_facts net;
  std::string notes;  // on presets, below the table
};

std::string render(const nlohmann::ordered_json& document, const render_request& request);

}  // namespace dr::compare
