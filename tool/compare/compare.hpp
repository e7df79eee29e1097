// The measurement: plans against a subject, verified, then timed in turns.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepreduce/deepreduce.hpp"
#include "link_model.hpp"
#include "row.hpp"
#include "tool/read/subjects.hpp"
#include "tool/show/console.hpp"

namespace dr::compare {

// Rounds by time: at least and at most so many, whatever the time.
inline constexpr uint32_t rounds_least = 5, rounds_most = 200;
inline constexpr double default_seconds = 0.25;
// More ranks than these are not merged but counted: merge_ns is that of so many frames, times ranks / merged_most.
inline constexpr uint32_t merged_most = 64;

struct measure_settings {
  uint32_t repeat =
      0;  // timed rounds, after one that warms up and is not counted; 0: as many as `seconds` has room for
  double seconds = default_seconds;  // of rounds, for each plan
  uint64_t seed = 0;                 // shared and private
  uint64_t segment_rows = 0;
  uint32_t ranks = 8;
  std::optional<link> over;          // models an exchange of the ranks
  uint32_t steps = 1;                // of training: feedback keeps what one leaves for the next
  bool each_step = false;            // rows of each of them, else of the last
  std::vector<std::string> presets;  // sets or names that were asked for: rows of their plans have the name
};

struct measured {
  std::vector<row> rows;          // of a step memcpy first, then the plans that passed, in their order
  std::vector<failure> failures;  // plans that did not; each has its line on the console, too
  nlohmann::ordered_json subjects = nlohmann::ordered_json::array();  // histograms.hpp: what each sparsifier kept
};

// gradients: of one subject, of at least one element, in the order of steps; from the first again if settings.steps are
// more. Each round runs every plan once, so that a machine that slows down or speeds up does it to all of them.
measured compare_plans(context& c, std::span<const subject> gradients, std::span<const plan> plans,
                       const measure_settings& settings, console& console);

}  // namespace dr::compare
