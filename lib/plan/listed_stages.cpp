#include "plan/listed_stages.hpp"

namespace dr {
namespace {

plan_call canonical_call(const listed_call& bound) {
  plan_call call{bound.name, {}};
  for (size_t i = 0; i < bound.param_count; ++i)
    if (const dr_param& p = *dr_param_at(bound.params, i); !is_default(p, bound.values[i].number))
      call.arguments.push_back({p.name, value_text(p, bound.values[i].number)});
  return call;
}

}  // namespace

void listed_stages::add_stage(const plan_stage& written, std::span<const listed_call> bound, bool is_default) {
  const char* const role = hold(written.role);
  const char* const text = hold(print_plan({written}));
  for (size_t i = 0; i < written.calls.size(); ++i) {
    std::vector<dr_stage_param>& params = params_.emplace_back();
    if (bound.empty()) {
      for (const plan_argument& a : written.calls[i].arguments)
        params.push_back({sizeof(dr_stage_param), hold(a.key), hold(a.value), 0, 0, 0, nullptr});
    } else {
      for (size_t p = 0; p < bound[i].param_count; ++p) {
        const dr_param& declared = *dr_param_at(bound[i].params, p);
        const double number = bound[i].values[p].number;
        params.push_back({sizeof(dr_stage_param), declared.name, hold(value_text(declared, number)), declared.type,
                          dr::is_default(declared, number), number, &declared});
      }
    }
    stages_.push_back({sizeof(dr_stage), role, hold(written.calls[i].name), text, static_cast<uint32_t>(i), is_default,
                       bound.empty() ? nullptr : bound[i].codec, params.data(), params.size()});
  }
}

void listed_stages::add(const char* role, std::span<const listed_call> calls, bool is_default) {
  plan_stage written{role, {}};
  for (const listed_call& call : calls) written.calls.push_back(canonical_call(call));
  add_stage(written, calls, is_default);
}

void listed_stages::add(const plan_stage& stage) { add_stage(stage, {}, false); }

std::string listed_stages::text() const {
  std::string text;
  for (const dr_stage& s : stages_)
    if (s.position == 0 && !s.is_default) (text += text.empty() ? "" : " ") += s.text;
  return text;
}

}  // namespace dr
