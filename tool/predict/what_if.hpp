// How predictions change with the link, the machine, the ranks and the codec.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "step_model.hpp"

namespace dr::predict {

// kind: bandwidth, compute, ranks or ratio.
//   {"kind", "axis", "x": […], "series": [{"number", "candidate", "step_ns": [… or null]}]}
nlohmann::ordered_json what_if(const std::string& kind, const step_model& m, std::span<const candidate> candidates);

// As a picture: steps over x, both axes logarithmic.
std::string curves_svg(const nlohmann::ordered_json& what_if, const std::string& title);

}  // namespace dr::predict
