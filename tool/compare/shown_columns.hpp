// What tables show of a row: five columns, or with --wide all that fit a wide terminal.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tool/show/text_table.hpp"
#include "totals.hpp"

namespace dr::compare {

struct shown_column {
  std::string heading;
  text_table::align side;
  std::function<std::string(const json_row&)> cell;
};

// smaller (and size), coding error, encode + decode, pays below; with a link the modelled step and its verdict instead of the last.
// ties: rows whose time is marked by ~.
std::vector<shown_column> short_columns(const std::set<const json_row*>& ties);
std::vector<shown_column> wide_columns();

// The time of an encode, with the sparsifier, and a decode: the middle half of the rounds lies between low and high.
struct time_range {
  double low, middle, high;
};
std::optional<time_range> whole_time(const json_row& row);

// Rows of one subject whose whole_time() is within the spread of the shortest; none if that is shorter than all others.
std::set<const json_row*> fastest_of(std::span<const json_row* const> rows);

// Texts of cells, safe for a terminal; "": unknown.
std::string shown_text(const json_row& row, const char* column);
std::string shown_count(const json_row& row, const char* column);  // 269,722
std::string smaller_text(const json_row& row);                     // ×397
std::string share_text(double share);                              // 4.7 %

}  // namespace dr::compare
