// Results as a page: one file of HTML that holds all it needs, and loads nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dr::compare {

// The page that shows `document`, the object of `compare --format json` (samples of single rounds are left out of it).
// Text of the document is data to the page, whatever is in it. Throws output_error if this build has no page.
std::string html_report(const nlohmann::ordered_json& document);

// Whether html_report works in this build; a command line can say so before anything is measured.
bool has_html_report();
inline constexpr const char* no_html_report =
    "unsupported: this build has no report: it was made with -Dreport=disabled, or Chart.js 3 was not there (Debian: "
    "install libjs-chart.js, then `meson setup --reconfigure`). A build with it shows rows that --output rows.json has "
    "saved: compare --from rows.json";

}  // namespace dr::compare
