#include "plan_text.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "deepreduce/deepreduce.hpp"

namespace dr::compare {
namespace {

// Cuts at `separator` outside of parentheses; empty pieces are left out.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '(') - (c == ')');
    if (c == separator && depth == 0)
      pieces.emplace_back();
    else
      pieces.back() += c;
  }
  std::erase(pieces, "");
  return pieces;
}

// role=part+part…, where a part is name or name(arguments).
struct plan_stage {
  std::string text, role;
  std::vector<std::string> parts;  // names
};

plan_stage read_stage(const std::string& text) {
  const size_t equals = text.find('=');
  plan_stage stage{text, text.substr(0, equals), {}};
  for (const std::string& part : split(std::string_view(text).substr(equals + 1), '+'))
    stage.parts.push_back(part.substr(0, part.find('(')));
  return stage;
}

// Whether each part of the stage gives back what it was given.
bool is_exact(dr_role role, const plan_stage& stage) {
  for (size_t i = 0; i < stage.parts.size(); ++i) {
    const dr_codec* codec = find_codec(i == 0 ? role : dr_role{DR_ROLE_BYTES}, stage.parts[i]);
    if (codec == nullptr || !(codec->traits & DR_EXACT)) return false;
  }
  return true;
}

}  // namespace

plan_reading read_plan(std::string_view text) {
  // What a canonical text leaves out has its default.
  std::map<std::string, plan_stage> stages{{"sparsify", read_stage("sparsify=none")},
                                           {"index", read_stage("index=raw")},
                                           {"value", read_stage("value=raw")},
                                           {"regather", read_stage("regather=on")}};
  plan_reading reading;
  reading.text = text;
  for (const std::string& piece : split(text, ' ')) {
    plan_stage stage = read_stage(piece);
    if (stage.role != "sparsify") reading.without_sparsify += (reading.without_sparsify.empty() ? "" : " ") + piece;
    stages[stage.role] = std::move(stage);
  }
  reading.sparsify = stages["sparsify"].text;
  reading.exact_index = is_exact(DR_ROLE_INDEX, stages["index"]);
  reading.exact_value = is_exact(DR_ROLE_VALUE, stages["value"]);
  reading.regather = stages["regather"].text != "regather=off";
  if (const auto feedback = stages.find("feedback"); feedback != stages.end()) reading.feedback = feedback->second.text;
  if (const auto exchange = stages.find("exchange"); exchange != stages.end()) reading.exchange = exchange->second.text;
  if (const size_t gamma = reading.feedback.find("gamma="); gamma != std::string::npos)
    reading.gamma = std::strtod(reading.feedback.c_str() + gamma + 6, nullptr);
  return reading;
}

const char* role_name(dr_role role) {
  constexpr const char* names[] = {"?", "index", "value", "order", "bytes", "pair", "tensor", "sparsify", "feedback"};
  return names[role < std::size(names) ? role : 0];
}

const dr_codec* find_codec(dr_role role, std::string_view name) {
  for (const dr_codec* codec : codecs())
    if (codec->role == role && plan_name(*codec) == name) return codec;
  return nullptr;
}

std::string plan_name(const dr_codec& codec) {
  for (const dr_codec* first : codecs())  // built-ins come first
    if (first->role == codec.role && std::string_view(first->name) == codec.name)
      return (first == &codec ? "" : "plugin.") + std::string(codec.name);
  return codec.name;
}

}  // namespace dr::compare
