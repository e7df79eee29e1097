// Plans by the names that the literature has for them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "deepreduce/deepreduce.h"
#include "plan/syntax.hpp"

namespace dr {

std::span<const dr_preset> preset_list();

// The stages of a plan that may begin with a preset's name:
//   text = [ preset ] (stage)*      stages behind a name take the place of the preset's own
dr_status read_plan(std::string_view text, std::vector<plan_stage>& stages, dr_error& error);

}  // namespace dr
