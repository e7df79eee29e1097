// Formats --help and prints it.
#pragma once

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "output.hpp"

namespace dr::compare {

// Hides the default values that CLI11 prints for flags: --pareto{COLUMNS}, --no-break-even{false}.
class help_text : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const size_t brace = name.find('{');
    if (brace == name.npos) return name;
    const std::string value = name.substr(brace + 1, name.size() - brace - 2);
    return name.substr(0, brace) + (value == "false" ? "" : "[=" + value + "]");
  }
};

// Prints the answer to --help or --version. Returns the exit status; throws output_error.
inline int print_answer(const CLI::App& app, const CLI::ParseError& e) {
  std::ostringstream text;
  const int status = app.exit(e, text, text);
  write_output("", text.str());
  return status;
}

}  // namespace dr::compare
