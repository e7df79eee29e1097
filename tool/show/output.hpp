// Where results go.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dr::compare {

struct output_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// To stdout if `path` is empty. A file is there whole or not at all: it is written beside its place and renamed;
// devices and pipes are written to as they are. Throws output_error.
void write_output(const std::string& path, std::string_view bytes);

// That it can probably be written, before long work whose result goes there. Throws output_error.
void check_output(const std::string& path);

struct output_option {
  const char* name;
  const std::string& path;
};
// Likewise of several, each a file of its own.
void check_outputs(std::initializer_list<output_option> options);

}  // namespace dr::compare
