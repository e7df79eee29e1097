// Names of a plan that are not codecs, with their parameters, declared in the same way as those of codecs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "deepreduce/deepreduce.h"

namespace dr {

std::span<const dr_stage_word> stage_words();
const dr_stage_word* find_word(std::string_view role, std::string_view name);  // nullptr: there is none
// The default of a role; for index and value, where codecs are names, too, `auto`. nullptr: the role has no words.
const dr_stage_word* first_word(std::string_view role);
// The words of a role, for errors: "gather, owner, ring, hierarchy".
std::string words_of(std::string_view role);

}  // namespace dr
