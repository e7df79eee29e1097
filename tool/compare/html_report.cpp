#include "html_report.hpp"

#include <cstdlib>
#include <ctime>

#include "columns.hpp"
#include "file_names.hpp"
#include "page_text.hpp"
#include "tool/show/output.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

// JSON that is safe inside <script>: '<' occurs only in strings, where it may be escaped.
std::string for_script(const ordered_json& value) {
  std::string text;
  for (const char c : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace))
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  return text;
}

// 2026-11-22, in UTC; from SOURCE_DATE_EPOCH if set (reproducible-builds.org).
std::string today() {
  const char* const fixed = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t now = fixed ? static_cast<std::time_t>(std::strtoll(fixed, nullptr, 10)) : std::time(nullptr);
  std::tm parts{};
  char text[32] = "";
  if (gmtime_r(&now, &parts)) (void)std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

}  // namespace

bool has_html_report() { return !page_before_columns.empty(); }

std::string html_report(const ordered_json& document) {
  if (!has_html_report()) throw output_error(std::string("--report: ") + no_html_report);
  ordered_json shown = document;
  if (!shown.contains("written")) shown["written"] = today();
  for (ordered_json& row : shown["rows"]) row.erase("samples");
  without_folders(shown);
  std::string page(page_before_columns);
  return page.append(for_script(columns_json()))
      .append(page_before_document)
      .append(for_script(shown))
      .append(page_after_document);
}

}  // namespace dr::compare
