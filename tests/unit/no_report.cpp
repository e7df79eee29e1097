// A build with -Dreport=disabled, of which the rest of the tests knows nothing: linked with the page that it has, none.
#include <doctest/doctest.h>

#include "tool/compare/html_report.hpp"
#include "tool/show/output.hpp"

using namespace dr::compare;

TEST_CASE("a build without a report refuses it, and reports which option and package it lacks") {
  CHECK(!has_html_report());
  for (const char* word : {"--report: unsupported", "-Dreport=disabled", "libjs-chart.js", "compare --from rows.json"})
    CHECK_THROWS_WITH_AS(html_report({{"rows", nlohmann::ordered_json::array()}}), doctest::Contains(word),
                         output_error);
}
