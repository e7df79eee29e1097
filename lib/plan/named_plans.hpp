// Plans with a name: those of the literature, and those that the library uses itself.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "deepreduce/deepreduce.h"
#include "plan/syntax.hpp"

namespace dr {

std::span<const dr_preset> preset_list();

// Plans that senders need besides a tensor's own: all elements, exactly; the signs of a sum, one bit an element.
inline constexpr const char *exact_plan = "index=all value=raw", *signs_plan = "index=all value=sign";

// Replaces bloom(policy=naive), a term of DeepReduce's paper: leftmost, with the original values.
void expand_naive(std::vector<plan_stage>& stages);

// The stages of a plan that may begin with a preset's name:
//   text = [ preset ] (stage)*      stages after a name replace the preset's own
dr_status read_plan(std::string_view text, std::vector<plan_stage>& stages, dr_error& error);

}  // namespace dr
