// On what, and of what build, a measurement was made.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dr::compare {

nlohmann::ordered_json machine_facts();  // cpu, cores, flags, os; null where the system does not say
nlohmann::ordered_json build_facts();    // compiler, version, buildtype
std::string commit();                    // "unknown" if the build has none
std::string version_text();              // of --version: version, commit, build and the level of instructions in use

}  // namespace dr::compare
