// What stands below a table: its columns in words, and the answer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rows_table.hpp"

namespace dr::compare {

// A row per plan that all subjects have: their sum, as for totals. What pays for each of them, pays: pays_below is the least.
std::vector<json_row> together(std::span<const json_row> rows, uint64_t ranks);

struct link_facts {
  uint64_t ranks = 0;  // 0: unknown
  std::string text;    // of --link; "": none
};

// How tables name a link: as --link does, and in bits where that counts bytes: "10GB/s = 80 Gb/s".
std::string link_words(const std::string& text, double bits_per_second);

// Explains the columns of these rows. totals: also the totals' own.
std::string table_legend(std::span<const json_row> rows, bool totals, const link_facts& net,
                         const table_request& request);

// Of the rows of one subject, or of together(): the one that pays on the fastest links, or has the shortest step on the link; nullptr:
// none pays.
const json_row* winner_of(std::span<const json_row> rows);

// The smallest, the fastest and the best exact plan, what pays, what training showed, and dense bf16 beside them. "" for less than
// two plans.
std::string summary_text(std::span<const json_row> rows, const link_facts& net, size_t width);

}  // namespace dr::compare
