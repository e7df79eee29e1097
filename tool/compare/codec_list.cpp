#include "codec_list.hpp"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "deepreduce/deepreduce.hpp"
#include "tool/read/plan_text.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

struct bit_name {
  uint32_t bit;
  const char* name;
};
constexpr bit_name traits[] = {{DR_EXACT, "exact"},
                               {DR_REPLACES_SUPPORT, "replaces_support"},
                               {DR_REORDERS, "reorders"},
                               {DR_CARRIES_ORDER, "carries_order"},
                               {DR_LINEAR, "linear"},
                               {DR_FIXED_SIZE, "fixed_size"},
                               {DR_NEEDS_FINITE, "needs_finite"},
                               {DR_SHARED_RANDOM, "shared_random"},
                               {DR_PRIVATE_RANDOM, "private_random"},
                               {DR_HOST_ONLY, "host_only"},
                               {DR_TOTAL, "total"},
                               {DR_PREFIX, "prefix"},
                               {DR_NEEDS_BASE, "needs_base"},
                               {DR_NEEDS_HISTORY, "needs_history"}};
constexpr bit_name dtypes[] = {{DR_DTYPE_BIT(DR_F32), "f32"},   {DR_DTYPE_BIT(DR_F16), "f16"},
                               {DR_DTYPE_BIT(DR_BF16), "bf16"}, {DR_DTYPE_BIT(DR_F64), "f64"},
                               {DR_DTYPE_BIT(DR_U8), "u8"},     {DR_DTYPE_BIT(DR_U16), "u16"},
                               {DR_DTYPE_BIT(DR_U32), "u32"}};

ordered_json names_of(uint32_t bits, std::span<const bit_name> names) {
  auto list = ordered_json::array();
  for (const bit_name& n : names)
    if (bits & n.bit) list.push_back(n.name);
  return list;
}

const char* type_name(dr_param_type type) {
  return type == DR_PARAM_INT ? "integer" : type == DR_PARAM_REAL ? "real" : "choice";
}

std::string choice_at(const char* choices, double position) {
  std::string_view rest(choices);
  for (double i = 0; i < position && rest.find('|') != rest.npos; ++i) rest.remove_prefix(rest.find('|') + 1);
  return std::string(rest.substr(0, rest.find('|')));
}

// An integral double as an integer: 127, not 127.0.
ordered_json plain(double number) {
  if (number == std::floor(number) && std::abs(number) <= 9007199254740992.0) return static_cast<int64_t>(number);
  return number;
}

ordered_json param_json(const dr_param& p) {
  ordered_json j{{"name", p.name}, {"type", type_name(p.type)}};
  if (p.type == DR_PARAM_CHOICE) {
    j["choices"] = p.choices;
  } else {
    j["minimum"] = plain(p.minimum);
    j["maximum"] = plain(p.maximum);
  }
  j["required"] = p.required != 0;
  if (p.required)
    j["default"] = nullptr;
  else if (p.type == DR_PARAM_CHOICE)
    j["default"] = choice_at(p.choices, p.fallback);
  else
    j["default"] = plain(p.fallback);
  j["summary"] = p.summary;
  return j;
}

// Sparsifiers and feedback have no `cuda` kernels; a trait says where they do not run.
bool runs_on_cuda(const dr_codec& c) {
  return c.role <= DR_ROLE_BYTES ? c.cuda != nullptr : !(c.traits & DR_HOST_ONLY);
}

std::string summary_of(const dr_codec& c) {
  const bool added = c.role == DR_ROLE_INDEX && std::string_view(c.name) == "block";
  return std::string(c.summary) + (added ? "; sparsify=blocks adds it, a plan cannot name it" : "");
}

ordered_json codec_entry(const dr_codec& c) {
  ordered_json j{{"role", role_name(c.role)},
                 {"name", plan_name(c)},
                 {"id", c.id},
                 {"summary", summary_of(c)},
                 {"traits", names_of(c.traits, traits)},
                 {"dtypes", names_of(c.dtypes, dtypes)},
                 {"cuda", runs_on_cuda(c)},
                 {"parameters", ordered_json::array()}};
  for (size_t i = 0; i < c.param_count; ++i) j["parameters"].push_back(param_json(*dr_param_at(c.params, i)));
  return j;
}

std::string range_text(const dr_param& p) {
  if (p.type == DR_PARAM_CHOICE) return p.choices;
  if (p.type == DR_PARAM_INT) return fmt::format("integer {:.0f}…{:.0f}", p.minimum, p.maximum);
  return fmt::format("real {:.4g}…{:.4g}", p.minimum, p.maximum);
}

std::string fallback_text(const dr_param& p) {
  if (p.required) return "required";
  return "default " + (p.type == DR_PARAM_CHOICE ? choice_at(p.choices, p.fallback) : fmt::format("{}", p.fallback));
}

bool is_named(const std::string& asked, const std::string& role, const std::string& name) {
  return asked.empty() || asked == name || asked == role || asked == role + '=' + name;
}

std::vector<const dr_codec*> named(const std::string& name) {
  std::vector<const dr_codec*> list = codecs();
  std::erase_if(list, [&](const dr_codec* c) {
    return !is_named(name, role_name(c->role), c->name) && !is_named(name, role_name(c->role), plan_name(*c));
  });
  return list;
}

std::string param_lines(const dr_param* params, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    const dr_param& p = *dr_param_at(params, i);
    text += fmt::format("    {:<10} {}, {}: {}\n", p.name, range_text(p), fallback_text(p), p.summary);
  }
  return text;
}

}  // namespace

std::string codec_table(const std::string& name) {
  std::string text;
  for (const dr_codec* c : named(name)) {
    std::string promises;
    for (const auto& trait : names_of(c->traits, traits))
      promises += (promises.empty() ? "  [" : " ") + trait.get<std::string>();
    text +=
        fmt::format("{}={}{}{}\n    {}\n", role_name(c->role), plan_name(*c), promises.empty() ? "" : promises + "]",
                    runs_on_cuda(*c) ? "" : "  (no CUDA: runs on the CPU)", summary_of(*c));
    text += param_lines(c->params, c->param_count);
  }
  for (const dr_stage_word* w : stage_words())
    if (is_named(name, w->role, w->name))
      text += fmt::format("{}={}\n    {}\n{}", w->role, w->name, w->summary, param_lines(w->params, w->param_count));
  return text;
}

std::string codec_json(const std::string& name) {
  auto list = ordered_json::array();
  for (const dr_codec* c : named(name)) list.push_back(codec_entry(*c));
  if (list.empty()) return {};
  return list.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace dr::compare
