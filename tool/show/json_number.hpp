// Numbers as JSON has them: null in place of NaN and infinities.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace dr::compare {

inline nlohmann::ordered_json finite(double number) {
  return std::isfinite(number) ? nlohmann::ordered_json(number) : nlohmann::ordered_json(nullptr);
}

}  // namespace dr::compare
