#include "report.hpp"

#include "machine.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

std::string csv_cell(const ordered_json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

template <class Cell>
std::string csv_line(const ordered_json& columns, Cell&& cell) {
  std::string line;
  for (auto it = columns.begin(); it != columns.end(); ++it) line += (line.empty() ? "" : ",") + cell(it);
  return line + "\r\n";
}

ordered_json link_json(const run_facts& run) {
  if (!run.over) return nullptr;
  return {
      {"text", run.link_text}, {"bits_per_second", run.over->bits_per_second}, {"latency_ns", run.over->latency_ns}};
}

}  // namespace

ordered_json json_document(std::span<const row> rows, const ordered_json& subjects, const run_facts& run) {
  ordered_json report{{"schema", "deepreduce-compare-1"},
                      {"machine", machine_facts()},
                      {"commit", commit()},
                      {"build", build_facts()},
                      {"seed", run.seed},
                      {"repeat", run.repeat ? ordered_json(run.repeat) : ordered_json(nullptr)},
                      {"seconds", run.repeat ? ordered_json(nullptr) : ordered_json(run.seconds)},
                      {"threads", run.threads},
                      {"ranks", run.ranks},
                      {"link", link_json(run)},
                      {"subjects", subjects},
                      {"rows", ordered_json::array()},
                      {"failures", ordered_json::array()}};
  for (const row& r : rows) {
    report["rows"].push_back(to_json(r));
    report["rows"].back()["samples"] = samples_json(r);
  }
  for (const failure& f : run.failures) report["failures"].push_back(to_json(f));
  return report;
}

std::string json_report(const ordered_json& document) {
  // A file's name is any bytes; JSON is UTF-8.
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

std::string csv_report(std::span<const row> rows) {
  std::string text = csv_line(to_json(row{}), [](const auto& it) { return it.key(); });
  for (const row& r : rows) text += csv_line(to_json(r), [](const auto& it) { return csv_cell(it.value()); });
  return text;
}

}  // namespace dr::compare
