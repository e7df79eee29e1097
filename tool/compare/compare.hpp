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

// Limits on the rounds of a measurement by time.
inline constexpr uint32_t min_rounds = 5, max_rounds = 200;
inline constexpr double default_seconds = 0.25;
// At most this many frames are merged; for more ranks merge_ns is scaled by ranks / max_merged.
inline constexpr uint32_t max_merged = 64;

struct measure_settings {
  uint32_t repeat = 0;               // timed rounds, after one that warms up; 0: as many as fit into `seconds`
  double seconds = default_seconds;  // of rounds, per plan
  uint64_t seed = 0;                 // shared and private
  uint64_t segment_rows = 0;
  uint32_t ranks = 8;
  std::optional<link> over;          // models an exchange of the ranks
  uint32_t steps = 1;                // of training: feedback carries the residual from step to step
  bool each_step = false;            // rows of all steps, else of the last
  std::vector<std::string> presets;  // requested sets or names, for the rows of their plans
};

struct measured {
  std::vector<row> rows;          // per step: memcpy, then the plans that passed, in order
  std::vector<failure> failures;  // the other plans; the console shows them, too
  nlohmann::ordered_json subjects = nlohmann::ordered_json::array();  // histograms.hpp, per sparsifier
};

// gradients: of one subject with at least one element, step by step; they repeat if settings.steps is larger. A round
// runs every plan once, so that a change in the machine's speed affects all plans alike.
measured compare_plans(context& c, std::span<const subject> gradients, std::span<const plan> plans,
                       const measure_settings& settings, console& console);

}  // namespace dr::compare
