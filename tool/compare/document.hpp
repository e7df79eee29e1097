// The JSON document of a comparison: written, resumed and read again. docs/compare.schema.json describes it.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "totals.hpp"

namespace dr::compare {

inline constexpr const char* document_schema = "deepreduce-compare-1";

// A document without rows: schema, machine, commit, build, then `settings` (seed, repeat, threads, …), then empty lists
// subjects, rows, totals and failures.
nlohmann::ordered_json empty_document(const nlohmann::ordered_json& settings);

// Reads a saved document. Throws input_error: no file, not JSON, not a comparison, another schema, or an invalid row.
nlohmann::ordered_json read_document(const std::string& path);

std::vector<json_row> rows_of(const nlohmann::ordered_json& document);
// With the document's `machine` and `commit` in rows that lack them.
std::vector<json_row> rows_with_origin(const nlohmann::ordered_json& document);

std::string json_text(const nlohmann::ordered_json& document);
// RFC 4180; undefined is empty. `columns` first, then other columns of the rows; without lists and objects.
std::string csv_text(std::span<const json_row> rows, std::span<const std::string> columns);

// A file that a long run fills subject by subject, and continues after an interruption.
class resumed_run {
 public:
  // Reads `path` if it exists. Throws input_error if its settings differ from `document`.
  resumed_run(std::string path, nlohmann::ordered_json document);

  const std::vector<json_row>& rows() const { return rows_; }
  const nlohmann::ordered_json& subjects() const { return document_.at("subjects"); }
  const std::vector<std::string>& notes() const { return notes_; }  // other machine, other commit
  // Whether a row has this input, tensor, step, dtype, d, plan and `data` (digest of the values; absent: any).
  bool has(const json_row& row) const;
  // Drops rows of these subjects' inputs (rows without a plan) with other tensors or values: a file was overwritten.
  // Returns their number.
  size_t forget_others(std::span<const json_row> subjects);
  // Adds rows without duplicates (memcpy) and writes the file, completely or not at all. Throws output_error.
  void add(std::span<const json_row> rows, const nlohmann::ordered_json& subjects);

 private:
  std::string path_;
  nlohmann::ordered_json document_;
  std::vector<json_row> rows_;
  std::set<std::string> known_;  // identities of the rows
  std::vector<std::string> notes_;
};

}  // namespace dr::compare
