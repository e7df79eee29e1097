// Plans by the names that the literature has for them.
#pragma once

#include <string>
#include <vector>

namespace dr::compare {

// The plans of a set, or of one preset, after `sparsify` ("sparsify=topr(ratio=0.01)"). Empty: unknown name.
std::vector<std::string> preset_plans(const std::string& name, const std::string& sparsify);

// Whether a preset has a sparsifier or a transform of its own. Of "A, B", names of equal plans, A.
bool selects_itself(const std::string& names);

// The notes on a set, or on one preset, a line each.
std::string preset_notes(const std::string& name);

// A table of a set or of one preset; "": unknown name. Without a name: all.
std::string preset_table(const std::string& name = "");

// The same as JSON: a list of objects with name, set, plan and note. "": unknown name.
std::string preset_json(const std::string& name);

}  // namespace dr::compare
