// What `deepreduce compare --help` prints beneath the options.
#pragma once

#include <string>

namespace dr::compare {

std::string compare_help();

// Of `deepreduce help columns`.
std::string column_help();

}  // namespace dr::compare
