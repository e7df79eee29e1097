// Warnings about times that a table cannot distinguish.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "row.hpp"

namespace dr::compare {

struct named_times {
  std::string name;
  uint64_t rounds;
  timing sparsify, encode, decode, merge;  // NaN: unknown
};
named_times times_of(std::string name, const row& r);
named_times times_of(std::string name, const nlohmann::ordered_json& row);

// Warnings: too few rounds for a spread; spreads above a quarter, with their rows if `named`.
std::vector<std::string> spread_notes(std::span<const named_times> rows, bool named);

}  // namespace dr::compare
