// Names of files in place of their paths, for a report that is passed on.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace dr::compare {

// Each path's file name; where several have it, as many of the last folders as tell them apart. A path without '/' is its name.
std::map<std::string, std::string> file_names(const std::set<std::string>& paths);

// The document of a comparison without folders: inputs, files of saved rows, plug-ins, and paths in messages of failures.
void without_folders(nlohmann::ordered_json& document);

}  // namespace dr::compare
