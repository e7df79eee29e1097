// A prediction as a table or CSV.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace dr::predict {

// width: of a line; columns that explain a step are left out where they do not fit.
std::string prediction_table(const nlohmann::ordered_json& document, size_t width);
std::string prediction_csv(const nlohmann::ordered_json& document);

std::string count_text(uint64_t n, const char* what);  // "1 tensor", "1,234 tensors"
std::string time_text(double ns);                      // "1.23 ms"; "0"
std::string bytes_text(double bytes);                  // "1.234 MB"
std::string rate_text(double bits_per_second);         // "1.234 Gb/s"; "never", "always" for 0 and infinity

}  // namespace dr::predict
