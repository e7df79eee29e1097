// Where --help goes.
#pragma once

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "output.hpp"

namespace dr::compare {

// What --help and --version ask for, to standard output. Returns the exit status; throws output_error.
inline int print_answer(const CLI::App& app, const CLI::ParseError& e) {
  std::ostringstream text;
  const int status = app.exit(e, text, text);
  write_output("", text.str());
  return status;
}

}  // namespace dr::compare
