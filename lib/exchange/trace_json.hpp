// An exchange as Chrome's trace event JSON.
#pragma once

#include <string>

#include "exchange/rank_exchange.hpp"

namespace dr {

const char* step_name(uint32_t step);
std::string trace_json(const exchange& x);

}  // namespace dr
