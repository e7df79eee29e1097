#include "plan_list.hpp"

#include <fmt/core.h>

#include <filesystem>
#include <set>

#include "plan_sweep.hpp"
#include "tool/show/console.hpp"

namespace dr::compare {

plan parse_plan(const std::string& text) {
  try {
    return plan(text);
  } catch (const error& e) {
    throw usage_error("--plan '" + text + "': " + e.detail.message);
  }
}

std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs, size_t limit) {
  std::vector<std::string> all;
  for (const std::string& input : inputs) {
    if (!input.starts_with("synth:")) {
      all.push_back(input);
      continue;
    }
    try {
      for (std::string& text : expand(input, limit)) all.push_back(std::move(text));
    } catch (const sweep_error& e) {
      throw usage_error(fmt::format("{}: {}", input, e.what()));
    }
  }
  return all;
}

std::vector<std::string> expand_plans(const std::vector<std::string>& texts, size_t limit) {
  std::vector<std::string> canonical;
  std::set<std::string> known;
  size_t expanded = 0;
  for (const std::string& text : texts) {
    std::vector<std::string> list;
    try {
      list = expand(text, limit);
    } catch (const sweep_error& e) {
      throw usage_error(fmt::format("--plan '{}': {}", text, e.what()));
    }
    expanded += list.size();
    if (expanded > limit)
      throw usage_error(fmt::format("--plan: more than {} plans; narrow a range, or raise --limit", limit));
    for (const std::string& one : list) try {
        const plan parsed(one);
        if (known.emplace(parsed.text()).second) canonical.emplace_back(parsed.text());
      } catch (const error& e) {
        const std::string from = one == text ? "" : fmt::format(", expanded from '{}'", text);
        throw usage_error(fmt::format("--plan '{}'{}: {}", one, from, e.detail.message));
      }
  }
  return canonical;
}

// dlopen searches for a name without a slash only among the system's libraries.
void load_plugins(const std::vector<std::string>& paths, const std::string& what) {
  for (const std::string& path : paths) try {
      const bool here = path.find('/') == std::string::npos && std::filesystem::exists(path);
      const std::string note = load_plugin(here ? "./" + path : path);
      if (!note.empty()) console().line("note: " + what + "'" + path + "': " + note);
    } catch (const error& e) {
      throw usage_error(what + "'" + path + "': " + e.detail.message);
    }
}

}  // namespace dr::compare
