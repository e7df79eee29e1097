// Results as a page: one HTML file that loads nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dr::compare {

// The page that shows `document`, the object of `compare --format json` (without the samples of single rounds,
// and with the names of files in place of their paths).
// The page treats any text of the document as data. Throws output_error if this build has no page.
std::string html_report(const nlohmann::ordered_json& document);

// Whether html_report works in this build, for an error before the measurement.
bool has_html_report();
inline constexpr const char* no_html_report =
    "unsupported: this build has no report: it has -Dreport=disabled, or Chart.js 3 was missing (Debian: "
    "install libjs-chart.js, then `meson setup --reconfigure`). Another build can show the rows of --output rows.json: "
    "compare --from rows.json";

}  // namespace dr::compare
