#include "plan_text.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "deepreduce/deepreduce.hpp"

namespace dr::compare {
namespace {

// Whether all codecs of a stage are exact. An absent stage is: its default is raw.
bool is_exact(dr_role role, std::span<const dr_stage> stages) {
  return std::ranges::all_of(stages, [&](const dr_stage& s) {
    if (std::string_view(s.role) != role_name(role)) return true;
    const dr_codec* const codec = find_codec(s.position == 0 ? role : dr_role{DR_ROLE_BYTES}, s.name);
    return codec != nullptr && (codec->traits & DR_EXACT);
  });
}

}  // namespace

plan_reading read_plan(std::string_view text) {
  // (A row's plan may name codecs of Python, or of another build.)
  const parsed_stages parsed{std::string(text)};
  const std::span<const dr_stage> stages = parsed.stages();
  const auto text_of = [&](const char* role, const char* otherwise) {
    const dr_stage* const stage = find_stage(stages, role);
    return std::string(stage ? stage->text : otherwise);
  };
  plan_reading reading;
  reading.text = text;
  reading.sparsify = text_of("sparsify", "sparsify=none");
  const auto text_without = [&](std::string_view role) {
    std::string rest;
    for (const dr_stage& s : stages)
      if (s.position == 0 && s.role != role) (rest += rest.empty() ? "" : " ") += s.text;
    return rest;
  };
  reading.without_sparsify = text_without("sparsify");
  reading.without_exchange = text_without("exchange");
  const dr_stage* const sparsify = find_stage(stages, "sparsify");
  reading.sparsifies = sparsify && std::string_view(sparsify->name) != "none";
  reading.exact_index = is_exact(DR_ROLE_INDEX, stages);
  reading.exact_value = is_exact(DR_ROLE_VALUE, stages);
  const dr_stage* const regather = find_stage(stages, "regather");
  reading.regather = !regather || std::string_view(regather->name) == "on";
  reading.feedback = text_of("feedback", "");
  reading.exchange = text_of("exchange", "");
  reading.transform = text_of("transform", "");
  const dr_stage* const transform = find_stage(stages, "transform");
  reading.coefficients = transform && std::string_view(transform->name) == "dct";
  if (const dr_stage* const feedback = find_stage(stages, "feedback"))
    if (const dr_stage_param* const gamma = find_param(*feedback, "gamma"))
      reading.gamma = std::strtod(gamma->text, nullptr);
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
