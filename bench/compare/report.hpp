// Rows as a person, a spreadsheet or a program reads them.
#pragma once

#include <span>
#include <string>

#include "row.hpp"

namespace dr::compare {

struct run_facts {
  uint64_t seed = 0;
  uint32_t repeat = 0, threads = 0;
};

// The object that --format json prints; see --help.
nlohmann::ordered_json json_document(std::span<const row> rows, const nlohmann::ordered_json& subjects,
                                     const run_facts& run);
std::string json_report(const nlohmann::ordered_json& document);  // as text
std::string csv_report(std::span<const row> rows);                         // RFC 4180, undefined is empty
std::string table_report(std::span<const row> rows, uint32_t ranks);       // at most 140 columns; see break_even_speed

}  // namespace dr::compare
