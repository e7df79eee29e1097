// The page of a report, made by embed_page.py from the folder `page` and Chart.js; empty in a build without
// Chart.js, or with -Dreport=disabled.
#pragma once

#include <string_view>

namespace dr::compare {

extern const std::string_view page_before_columns, page_before_document, page_after_document;

}  // namespace dr::compare
