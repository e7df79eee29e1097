// Formats --help and prints it.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "output.hpp"
#include "plain_text.hpp"
#include "text_width.hpp"

namespace dr::compare {

// The range of a number among an option's checks: "From 0 to 256." CLI11 puts it behind the name: "N:INT in [0 - 256]".
inline std::string range_sentence(const std::string& check) {
  const size_t open = check.find(" in ["), dash = check.find(" - ", open), close = check.find(']', open);
  if (open == check.npos || dash == check.npos || close == check.npos || dash > close) return "";
  return " From " + check.substr(open + 5, dash - open - 5) + " to " + check.substr(dash + 3, close - dash - 3) + ".";
}

// Options as `--name TYPE`, and what CLI11 adds to that as sentences behind the description. Hides the default values that it
// prints for flags: --pareto{COLUMNS}, --no-break-even{false}.
class help_text : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const size_t brace = name.find('{');
    if (brace == name.npos) return name;
    const std::string value = name.substr(brace + 1, name.size() - brace - 2);
    return name.substr(0, brace) + (value == "false" ? "" : "[=" + value + "]");
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = type_of(*option);
    return (type.empty() ? "" : " " + type) +
           (option->get_expected_max() == CLI::detail::expected_max_vector_size ? " ..." : "") +
           (option->get_required() ? " REQUIRED" : "");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string limits = range_sentence(checks_of(*option));
    limits += names_sentence(" Only with ", " and ", option->get_needs());
    limits += names_sentence(" Not with ", " or ", option->get_excludes());
    const std::string text = CLI::Formatter::make_option_desc(option);
    return text + (limits.empty() || text.ends_with('.') ? "" : ".") + limits;
  }

  // "N": without the checks.
  static std::string type_of(const CLI::Option& option) {
    if (option.get_type_size() == 0) return "";
    const std::string type = option.get_type_name();
    return type.substr(0, type.size() - checks_of(option).size());
  }

 private:
  // ":INT in [0 - 256]" or ":{table,csv}", as CLI11 appends it to the name of the type.
  static std::string checks_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    const size_t in = type.rfind(" in ["), list = type.rfind(":{");
    const size_t colon = list != type.npos ? list : in == type.npos ? in : type.rfind(':', in);
    return colon == type.npos ? "" : type.substr(colon);
  }

  static std::string names_sentence(const char* before, const char* between, const std::set<CLI::Option*>& options) {
    std::string names;
    for (const CLI::Option* option : options) names += (names.empty() ? before : between) + option->get_name();
    return names.empty() ? "" : names + ".";
  }
};

// A few options under a title; a name that the command does not have is left out.
struct help_group {
  const char* title;
  std::vector<std::pair<const char*, const char*>> lines;  // the option's name, and what it does
};

// -h prints the usage and these groups, --help everything.
inline void add_short_help(CLI::App& app, const std::string& usage, const std::vector<help_group>& groups) {
  constexpr size_t column = 24;
  std::string text = app.get_description() + "\nUsage: " + usage + "\n";
  for (const help_group& group : groups) {
    text += std::string(group.title) + "\n";
    for (const auto& [name, meaning] : group.lines) {
      const CLI::Option* const option = app.get_option_no_throw(name);
      if (!option) continue;
      const std::string type = std::string_view(name).starts_with('-') ? help_text::type_of(*option) : "";
      std::string line = std::string("  ") + name + (type.empty() ? "" : " " + type);
      const size_t width = width_of(line);
      text += line + std::string(width < column ? column - width : 1, ' ') + meaning + "\n";
    }
  }
  text += "All options: deepreduce " + app.get_name() + " --help";
  app.set_help_flag("--help", "Print all options and exit");
  app.add_flag_callback(
         "-h", [text] { throw CLI::CallForVersion(text, 0); }, "Print the most frequent options and exit")
      ->trigger_on_parse();
}

// Prints the answer to --help or --version. Returns the exit status; throws output_error.
inline int print_answer(const CLI::App& app, const CLI::ParseError& e) {
  std::ostringstream text;
  const int status = app.exit(e, text, text);
  write_output("", plain(text.str()));
  return status;
}

}  // namespace dr::compare
