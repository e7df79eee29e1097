// The stages of a bound plan, for callers, and its canonical text: equal for equivalent plans.
#include "core/registry.hpp"
#include "pipeline/bind.hpp"

namespace dr {
namespace {

listed_call call_of(const bound_stage& s) {
  return {plan_name(*s.codec), s.codec, s.codec->params, s.codec->param_count, s.values.data()};
}

void add(listed_stages& to, const char* role, const std::vector<bound_stage>& list, bool is_default) {
  std::vector<listed_call> calls;
  calls.reserve(list.size());
  for (const bound_stage& s : list) calls.push_back(call_of(s));
  to.add(role, calls, is_default);
}

// A word without parameters.
void add(listed_stages& to, const char* role, const char* name, bool is_default) {
  const listed_call call{name, nullptr, nullptr, 0, nullptr};
  to.add(role, {&call, 1}, is_default);
}

void add(listed_stages& to, const bound_word& w, bool is_default) {
  const listed_call call{w.word->name, nullptr, w.word->params, w.word->param_count, w.values.data()};
  to.add(w.word->role, {&call, 1}, is_default);
}

void add_feedback(plan& p) {
  if (p.keeps_feedback())
    add(p.stages, "feedback", {p.feedback}, false);
  else
    add(p.stages, "feedback", "none", true);
}

void add_exchange(plan& p) {
  bound_word w;
  if (const bound_word* own = p.word_of("exchange")) {
    w = *own;
  } else {
    dr_error none;
    w.word = first_word("exchange");
    (void)bind_arguments({w.word->name, w.word->params, w.word->param_count}, {}, w.values, none);
  }
  add(p.stages, w, p.exchange.kind == exchange_kind::gather && p.exchange.parts == 1);
}

}  // namespace

void list_stages(plan& p) {
  if (p.transforms()) {
    add(p.stages, *p.word_of("transform"), false);
    return add_feedback(p);
  }
  add(p.stages, "sparsify", {p.sparsify}, p.sparsify.codec->id == default_sparsifier);
  add_feedback(p);
  if (p.index_choices.empty())
    add(p.stages, "index", p.index, false);
  else
    add(p.stages, "index", "auto", false);
  if (p.value_choices.empty())
    add(p.stages, "value", p.value, false);
  else
    add(p.stages, *p.word_of("value"), false);
  if (!p.order.empty()) {
    const bool is_default = p.order.size() == 1 && p.order[0].codec->id == default_codec;
    add(p.stages, "order", p.order, is_default);
  }
  add(p.stages, "regather", p.regather ? "on" : "off", p.regather);
  add(p.stages, "bucket", p.flat ? "flat" : "none", !p.flat);
  add(p.stages, "merge", p.votes ? "vote" : "mean", !p.votes);
  add_exchange(p);
  if (p.has_tiles())
    add(p.stages, *p.word_of("transform"), false);
  else
    add(p.stages, "transform", "none", true);
}

}  // namespace dr
