// Rows as a person, a spreadsheet or a program reads them.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "link_model.hpp"
#include "row.hpp"

namespace dr::compare {

struct run_facts {
  uint64_t seed = 0;
  uint32_t repeat = 0;  // 0: as many rounds as `seconds` has room for
  double seconds = 0;
  uint32_t threads = 0, ranks = 0;
  std::string link_text;  // as it was given; "": none
  std::optional<link> over;
  std::span<const failure> failures;
};

// The object that --format json prints; see --help.
nlohmann::ordered_json json_document(std::span<const row> rows, const nlohmann::ordered_json& subjects,
                                     const run_facts& run);
std::string json_report(const nlohmann::ordered_json& document);            // as text
std::string csv_report(std::span<const row> rows);                          // RFC 4180, undefined is empty
std::string table_report(std::span<const row> rows, const run_facts& run);  // at most 140 columns

}  // namespace dr::compare
