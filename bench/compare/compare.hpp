// The measurement: plans against a tensor, verified, then timed in turns.
#pragma once

#include <span>
#include <vector>

#include "console.hpp"
#include "deepreduce/deepreduce.hpp"
#include "inputs.hpp"
#include "row.hpp"

namespace dr::compare {

struct measure_settings {
  uint32_t repeat = 15;  // timed rounds, after one that warms up and is not counted
  uint64_t seed = 0;     // shared and private
  uint64_t segment_rows = 0;
  uint32_t steps = 1;      // of training: feedback keeps what one leaves for the next
  bool each_step = false;  // rows of each of them, else of the last
};

struct measured {
  std::vector<row> rows;  // of a step memcpy first, then the plans that passed, in their order
  nlohmann::ordered_json subjects = nlohmann::ordered_json::array();  // histograms.hpp: what each sparsifier kept
  uint32_t failures = 0;  // plans that did not; each has its line on the console
};

// gradients: of one tensor, of at least one element, in the order of steps; from the first again if settings.steps are
// more. Each round runs every plan once, so that a machine that slows down or speeds up does it to all of them.
measured compare_plans(context& c, std::span<const tensor> gradients, std::span<const plan> plans,
                       const measure_settings& settings, console& console);

}  // namespace dr::compare
