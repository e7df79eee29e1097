#include "presets.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "deepreduce/deepreduce.hpp"

namespace dr::compare {
namespace {

// The note's lines, indented.
std::string indented(const dr_preset& p, size_t spaces) {
  std::string text = p.note;
  if (text.empty()) return text;
  const std::string margin(spaces, ' ');
  for (size_t at = 0; (at = text.find('\n', at)) != text.npos; ++at) text.insert(at + 1, margin);
  return margin + text + '\n';
}

// As the name means it where a plan is asked for: with a sparsifier, if the preset has none.
std::string whole_plan(const dr_preset& p) { return std::string(plan(p.name).text()); }

bool is_whole(const char* plan) {
  const parsed_stages parsed(plan);
  return find_stage(parsed.stages(), "sparsify") || find_stage(parsed.stages(), "transform");
}

}  // namespace

bool selects_itself(const std::string& names) {
  const std::string name = names.substr(0, names.find(", "));
  return std::ranges::any_of(presets(), [&](const dr_preset* p) { return name == p->name && is_whole(p->plan); });
}

std::vector<std::string> preset_plans(const std::string& name, const std::string& sparsify) {
  std::vector<std::string> plans;
  for (const dr_preset* p : presets())
    if (name == p->set || name == p->name) plans.push_back(is_whole(p->plan) ? p->plan : sparsify + " " + p->plan);
  return plans;
}

std::string preset_notes(const std::string& name) {
  std::string text;
  for (const dr_preset* p : presets())
    if (*p->note != 0 && (name == p->set || name == p->name)) text += fmt::format("{}:\n{}", p->name, indented(*p, 2));
  return text;
}

std::string preset_table(const std::string& name) {
  std::string text;
  size_t longest = 0;
  for (const dr_preset* p : presets()) longest = std::max(longest, std::strlen(p->name));
  const char* set = "";
  for (const dr_preset* p : presets()) {
    if (!name.empty() && name != p->set && name != p->name) continue;
    if (std::strcmp(set, p->set) != 0) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", p->set);
    set = p->set;
    text += fmt::format("  {:<{}} {}\n", p->name, longest, whole_plan(*p)) + indented(*p, longest + 3);
  }
  return text;
}

std::string preset_json(const std::string& name) {
  auto list = nlohmann::ordered_json::array();
  for (const dr_preset* p : presets())
    if (name.empty() || name == p->set || name == p->name)
      list.push_back({{"name", p->name}, {"set", p->set}, {"plan", whole_plan(*p)}, {"note", p->note}});
  return list.empty() ? std::string() : list.dump(1) + '\n';
}

}  // namespace dr::compare
