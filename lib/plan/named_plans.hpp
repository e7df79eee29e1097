// Plans that the library names: those of the literature, and those that it makes itself.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "deepreduce/deepreduce.h"
#include "plan/syntax.hpp"

namespace dr {

std::span<const dr_preset> preset_list();

// Of what senders need beside a tensor's own plan: all elements, exactly; the signs of a sum, one bit each.
inline constexpr const char *exact_plan = "index=all value=raw", *signs_plan = "index=all value=sign";

// bloom(policy=naive) is leftmost that keeps the original values, in the words of DeepReduce's paper.
void expand_naive(std::vector<plan_stage>& stages);

// The stages of a plan that may begin with a preset's name:
//   text = [ preset ] (stage)*      stages behind a name take the place of the preset's own
dr_status read_plan(std::string_view text, std::vector<plan_stage>& stages, dr_error& error);

}  // namespace dr
