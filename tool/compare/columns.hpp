// The columns of a row, in one table: JSON, CSV, the types in expressions, --help and the report page follow from it.
// The names are stable.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "row.hpp"

namespace dr::compare {

struct column {
  const char* name;     // in JSON, CSV and expressions
  const char* heading;  // in the report page
  const char* format;   // how the page writes it: text, count, bytes, time (ns), rate (bit/s), bits, share, error
  const char* meaning;  // docs/compare.schema.json says the same
  nlohmann::ordered_json (*cell)(const row&);
};

std::span<const column> columns();

// The cells in the order of the columns; undefined is null.
nlohmann::ordered_json to_json(const row& r);

// A row whose cells all have the type of their column.
nlohmann::ordered_json column_types();

// [{"name": …, "title": …, "kind": …, "text": …}, …], for the report page.
nlohmann::ordered_json columns_json();

// {"encode_ns": […], "decode_ns": […], "merge_ns": […]}, in the order of the rounds.
nlohmann::ordered_json samples_json(const row& r);

nlohmann::ordered_json to_json(const failure& f);

}  // namespace dr::compare
