#include "document.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>

#include "tool/read/inputs.hpp"
#include "tool/show/machine.hpp"
#include "tool/show/output.hpp"
#include "tool/show/text_table.hpp"
#include "totals.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

constexpr int depth_max = 32;  // copying a document recurses

ordered_json parse(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw input_error(path + ": is a directory, not saved rows");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw input_error(path + ": cannot be opened: " + std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto shallow = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    if (depth > depth_max)
      throw input_error(fmt::format("{}: lists and objects are more than {} deep", path, depth_max));
    return true;
  };
  try {
    return ordered_json::parse(text, shallow);
  } catch (const ordered_json::parse_error& e) {
    if (path.ends_with(".csv"))
      throw input_error(path +
                        ": CSV lacks what a run is known by; saved rows are JSON, as --output X.json writes them");
    throw input_error(fmt::format("{}: byte {}: not JSON; saved rows are files of --format json", path, e.byte));
  } catch (const ordered_json::exception& e) {  // a number outside the range of a double
    throw input_error(fmt::format("{}: {}", path, e.what()));
  }
}

// A row's cells are numbers, texts and null; only `samples` has lists.
void check_row(const ordered_json& row, const std::string& where) {
  if (!row.is_object()) throw input_error(where + ": not an object");
  for (const char* column : {"input", "plan"})
    if (!row.contains(column) || !row.at(column).is_string())
      throw input_error(fmt::format("{}: no text in column '{}'", where, column));
  for (const char* column : {"bytes", "d"})
    if (row.contains(column) && !row.at(column).is_null() && !row.at(column).is_number_unsigned())
      throw input_error(fmt::format("{}: column '{}' is {}, not a count", where, column, row.at(column).dump()));
}

std::string key_of(const json_row& row, std::initializer_list<const char*> columns) {
  std::string key;
  for (const char* column : columns) key += printed(row.value(column, json_row())) + '\0';
  return key;
}

std::string identity_of(const json_row& row) {
  return key_of(row, {"input", "tensor", "step", "dtype", "d", "plan", "data"});
}

// The same for all steps of a gradient.
std::string values_of(const json_row& row) { return key_of(row, {"tensor", "dtype", "d", "data"}); }

}  // namespace

ordered_json empty_document(const ordered_json& settings) {
  ordered_json document{
      {"schema", document_schema}, {"machine", machine_facts()}, {"commit", commit()}, {"build", build_facts()}};
  document.update(settings);
  for (const char* list : {"subjects", "rows", "totals", "failures"}) document[list] = ordered_json::array();
  return document;
}

ordered_json read_document(const std::string& path) {
  ordered_json document = parse(path);
  if (!document.is_object() || !document.contains("rows") || !document.at("rows").is_array())
    throw input_error(path + ": no list 'rows'; saved rows are files of --format json");
  // Old versions wrote no schema.
  const ordered_json schema = document.value("schema", ordered_json(document_schema));
  if (schema != document_schema)
    throw input_error(fmt::format("{}: schema {}; this version reads \"{}\"", path, schema.dump(), document_schema));
  size_t position = 0;
  for (const ordered_json& row : document.at("rows")) check_row(row, fmt::format("{}: row {}", path, position++));
  for (const char* list : {"subjects", "failures"})
    if (!document.contains(list))
      document[list] = ordered_json::array();
    else if (!document.at(list).is_array())
      throw input_error(fmt::format("{}: '{}' is not a list", path, list));
  return document;
}

std::vector<json_row> rows_of(const ordered_json& document) {
  return {document.at("rows").begin(), document.at("rows").end()};
}

std::vector<json_row> rows_with_origin(const ordered_json& document) {
  const ordered_json machine = document.value("machine", ordered_json::object());
  const ordered_json cpu = machine.is_object() ? machine.value("cpu", ordered_json()) : ordered_json();
  const ordered_json made_by = document.value("commit", ordered_json());
  std::vector<json_row> rows = rows_of(document);
  for (json_row& row : rows) {
    if (!row.contains("machine")) row["machine"] = cpu;
    if (!row.contains("commit")) row["commit"] = made_by;
  }
  return rows;
}

std::string json_text(const ordered_json& document) {
  // A file's name may be any bytes; JSON is UTF-8.
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

std::string csv_text(std::span<const json_row> rows, std::span<const std::string> columns) {
  std::vector<std::string> names(columns.begin(), columns.end());
  std::set<std::string> known(names.begin(), names.end());
  for (const json_row& row : rows)
    for (const auto& cell : row.items())
      if (!cell.value().is_structured() && known.insert(cell.key()).second) names.push_back(cell.key());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + csv_cell(name);
  text += "\r\n";
  for (const json_row& row : rows) {
    std::string line;
    for (const std::string& name : names) {
      const auto cell = row.find(name);
      if (&name != &names.front()) line += ',';
      if (cell != row.end() && !cell->is_structured()) line += csv_cell(*cell);
    }
    text += line + "\r\n";
  }
  return text;
}

resumed_run::resumed_run(std::string path, ordered_json document)
    : path_(std::move(path)), document_(std::move(document)) {
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) return;
  ordered_json saved = read_document(path_);
  for (const auto& setting : document_.items()) {
    const std::string& name = setting.key();
    const ordered_json& now = setting.value();
    if (name == "schema" || name == "build" || now.is_array()) continue;
    const ordered_json before = saved.value(name, ordered_json());
    if (before == now) continue;
    if (name != "machine" && name != "commit") {
      const auto refuse = [&](const std::string& what, const ordered_json& was, const ordered_json& is) {
        throw input_error(fmt::format("--resume {}: its rows were measured with {} = {}, now it is {}", path_, what,
                                      was.dump(), is.dump()));
      };
      if (now.is_object() && before.is_object())
        for (const auto& part : now.items())
          if (const ordered_json was = before.value(part.key(), ordered_json()); was != part.value())
            refuse(name + "." + part.key(), was, part.value());
      refuse(name, before, now);
    }
    notes_.push_back(fmt::format("{}: its rows were measured on another {}", path_, name));
  }
  rows_ = rows_of(saved);
  for (const json_row& row : rows_) known_.insert(identity_of(row));
  document_["subjects"] = saved.at("subjects");
}

bool resumed_run::has(const json_row& row) const {
  json_row of_any = row;
  of_any.erase("data");
  return known_.contains(identity_of(row)) || known_.contains(identity_of(of_any));
}

size_t resumed_run::forget_others(std::span<const json_row> subjects) {
  std::map<std::string, std::set<std::string>> current;  // of each input
  for (const json_row& s : subjects) current[text_of(s, "input")].insert(values_of(s));
  const auto is_gone = [&](const json_row& row) {
    const auto at = current.find(text_of(row, "input"));
    return at != current.end() && row.contains("data") && !at->second.contains(values_of(row));
  };
  const size_t gone = std::erase_if(rows_, is_gone);
  ordered_json& facts = document_["subjects"];
  facts.erase(std::remove_if(facts.begin(), facts.end(), is_gone), facts.end());
  known_.clear();
  for (const json_row& row : rows_) known_.insert(identity_of(row));
  return gone;
}

void resumed_run::add(std::span<const json_row> rows, const ordered_json& subjects) {
  for (const json_row& row : rows)
    if (known_.insert(identity_of(row)).second) rows_.push_back(row);
  for (const ordered_json& subject : subjects)
    if (std::ranges::find(document_["subjects"], subject) == document_["subjects"].end())
      document_["subjects"].push_back(subject);
  document_["rows"] = rows_;
  write_output(path_, json_text(document_));
}

}  // namespace dr::compare
