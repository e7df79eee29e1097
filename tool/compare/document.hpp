// The JSON document of a comparison: what is written, kept and read again. docs/compare.schema.json describes it.
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

// One that was saved. Throws input_error: no file, no JSON, no comparison, another schema, or a row that is none.
nlohmann::ordered_json read_document(const std::string& path);

std::vector<json_row> rows_of(const nlohmann::ordered_json& document);
// With cells `machine` and `commit` of the document, but for rows that have their own.
std::vector<json_row> rows_with_origin(const nlohmann::ordered_json& document);

std::string json_text(const nlohmann::ordered_json& document);
// RFC 4180; undefined is empty. `columns` first, then further ones of the rows; no lists and objects.
std::string csv_text(std::span<const json_row> rows, std::span<const std::string> columns);

// A file that a long run fills, subject by subject, and goes on with after it was cut off.
class resumed_run {
 public:
  // Reads `path` if it is there. Throws input_error if a setting of `document` is another one there.
  resumed_run(std::string path, nlohmann::ordered_json document);

  const std::vector<json_row>& rows() const { return rows_; }
  const nlohmann::ordered_json& subjects() const { return document_.at("subjects"); }
  const std::vector<std::string>& notes() const { return notes_; }  // other machine, other commit
  // A row of this input, tensor, step, dtype, d, plan and `data`, the digest of the values; rows without one are of any.
  bool has(const json_row& wanted) const;
  // Of the inputs of these subjects (rows without a plan) drops the rows of all other tensors and values: a file was
  // overwritten. Returns how many.
  size_t forget_others(std::span<const json_row> subjects);
  // Adds to the rows and writes the file, whole or not at all. Rows that are there already are left out (memcpy). Throws output_error.
  void add(std::span<const json_row> rows, const nlohmann::ordered_json& subjects);

 private:
  std::string path_;
  nlohmann::ordered_json document_;
  std::vector<json_row> rows_;
  std::set<std::string> known_;  // identities of the rows
  std::vector<std::string> notes_;
};

}  // namespace dr::compare
