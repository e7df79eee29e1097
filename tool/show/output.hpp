// Where results go.
#pragma once

#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dr::compare {

struct output_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Writes to stdout if `path` is empty. A file is written completely or not at all: to a temporary name, then renamed;
// devices and pipes are written to as they are. Throws output_error.
void write_output(const std::string& path, std::string_view bytes);

// Checks before a long run that the output can probably be written. Throws output_error.
void check_output(const std::string& path);

struct output_option {
  const char* name;
  const std::string& path;
};
// Likewise of several, each a file of its own, and none a file that the command reads.
void check_outputs(std::initializer_list<output_option> options,
                   std::initializer_list<std::span<const std::string>> inputs);

}  // namespace dr::compare
