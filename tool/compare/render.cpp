#include "render.hpp"

#include <fmt/core.h>

#include "against.hpp"
#include "best.hpp"
#include "columns.hpp"
#include "document.hpp"
#include "html_report.hpp"
#include "report.hpp"
#include "rows_table.hpp"
#include "tool/show/console.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> column_names() {
  std::vector<std::string> names;
  for (const column& c : columns()) names.emplace_back(c.name);
  return names;
}

std::string failures_text(const ordered_json& failures) {
  std::string text;
  for (const ordered_json& f : failures) {
    const std::string tensor = text_of(f, "tensor");
    text += fmt::format("failed: {}{}: {}: {}\n", text_of(f, "input"), tensor.empty() ? "" : " " + tensor,
                        text_of(f, "plan"), text_of(f, "error"));
  }
  return text;
}

// "10Gb/s among 8 ranks"; "": no link.
std::string link_of(const ordered_json& document) {
  const ordered_json link = document.value("link", ordered_json());
  if (!link.is_object() || !document.contains("ranks")) return {};
  return fmt::format("{} among {} ranks", text_of(link, "text"), document.at("ranks").dump());
}

// Answers first, then totals, then rows.
std::string readable(const ordered_json& document, std::span<const row> measured, const render_request& request) {
  const bool markdown = request.form == format::markdown;
  const table_request style{markdown ? table_style::markdown : table_style::text, !request.sorted};
  const auto title = [&](const char* text) {
    return markdown ? fmt::format("## {}\n\n", text) : fmt::format("{}\n", text);
  };
  std::string text;
  if (document.contains("best")) {
    text += (markdown ? title("Best plans") : "") + best_text(document.at("best")) + '\n';
  }
  if (document.contains("against")) return text + against_text(document.at("against"), markdown);
  const std::vector<json_row> rows = rows_of(document);
  const std::vector<json_row> totals(document.at("totals").begin(), document.at("totals").end());
  if (!totals.empty())
    text += title("Totals over all tensors") + totals_table(totals, style) + '\n' + title("Tensor by tensor");
  if (request.own_rows && totals.empty() && !markdown)
    text += table_report(measured, request.facts);
  else
    text += rows_table(rows, style) + (markdown ? "\n" : "") + failures_text(document.at("failures")) +
            (rows.empty() ? "" : table_legend(rows, !totals.empty(), link_of(document)));
  return text + request.notes;
}

}  // namespace

std::string render(const ordered_json& document, std::span<const row> measured, const render_request& request) {
  switch (request.form) {
    case format::json: return json_text(document);
    case format::csv: return csv_text(rows_with_origin(document), column_names());
    case format::html: return html_report(document);
    case format::table:
    case format::markdown: break;
  }
  return without_controls(readable(document, measured, request), true);
}

}  // namespace dr::compare
