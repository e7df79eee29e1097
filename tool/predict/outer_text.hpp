// Rounds of an outer loop as a table with its conclusion, at most 80 columns wide.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dr::predict {

std::string rounds_table(const nlohmann::ordered_json& document);
// The conclusion, a sentence or two each.
std::vector<std::string> rounds_verdict(const nlohmann::ordered_json& document);

}  // namespace dr::predict
