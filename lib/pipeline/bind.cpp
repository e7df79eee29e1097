#include "pipeline/bind.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "core/codec_notes.hpp"
#include "core/registry.hpp"
#include "plan/named_plans.hpp"
#include "plan/suggestions.hpp"

namespace dr {
namespace {

// The names of a role's codecs, for errors.
std::string names_of(dr_role role) {
  std::string text;
  for (size_t i = 0; i < codec_count(); ++i)
    if (codec_at(i)->role == role && !(codec_at(i)->traits & DR_PREFIX)) {
      if (!text.empty()) text += ", ";
      text += plan_name(*codec_at(i));
    }
  return text;
}

// Suggests a name: of the role, or the stage that has this one; else lists the role's.
dr_status unknown_codec(dr_role role, const std::string& name, dr_error& error) {
  size_t apart = 0;
  const std::string stage = stage_with(name, &apart), near = nearest_codec(role_name(role), name);
  const std::string hint = near.empty() && apart == 0 ? stage : near;
  if (!hint.empty())
    return fail(error, DR_E_ARGUMENT, "plan: no %s codec is called '%s'; is it '%s'?", role_name(role), name.c_str(),
                hint.c_str());
  return fail(error, DR_E_ARGUMENT, "plan: no %s codec is called '%s'; there are: %s%s", role_name(role), name.c_str(),
              names_of(role).c_str(), role == DR_ROLE_INDEX || role == DR_ROLE_VALUE ? ", auto" : "");
}

dr_status bind_call(dr_role role, const plan_call& call, bound_stage& out, dr_error& error) {
  out.codec = find_codec(role, call.name);
  if (!out.codec) return unknown_codec(role, call.name, error);
  const dr_codec& codec = *out.codec;
  if (codec.traits & DR_PREFIX)
    return fail(error, DR_E_ARGUMENT, "plan: %s cannot be named: a sparsifier of blocks adds it", codec.name);
  return bind_arguments({codec.name, codec.params, codec.param_count}, call.arguments, out.values, error);
}

// Binds the only name of a stage, a word that is not a codec. ARGUMENT: the role has no such word.
dr_status bind_word(const plan_stage& stage, plan& out, const bound_word*& bound, dr_error& error) {
  if (stage.calls.size() != 1) return fail(error, DR_E_ARGUMENT, "plan: %s= requires one name", stage.role.c_str());
  const plan_call& call = stage.calls[0];
  bound_word& w = out.words.emplace_back();
  w.word = find_word(stage.role, call.name);
  if (!w.word) {
    const std::string near = nearest_codec(stage.role, call.name);
    return fail(error, DR_E_ARGUMENT, "plan: no %s is called '%s'; %s%s", stage.role.c_str(), call.name.c_str(),
                near.empty() ? "there are: " : "is it ",
                (near.empty() ? words_of(stage.role) : '\'' + near + "'?").c_str());
  }
  bound = &w;
  return bind_arguments({w.word->name, w.word->params, w.word->param_count}, call.arguments, w.values, error);
}

dr_status bind_list(dr_role role, const plan_stage& stage, std::vector<bound_stage>& out, dr_error& error) {
  const uint32_t max = role == DR_ROLE_ORDER ? order_stages_max : stages_max;
  if (stage.calls.size() > max)
    return fail(error, DR_E_ARGUMENT, "plan: %s= has %zu codecs; at most %u", stage.role.c_str(), stage.calls.size(),
                max);
  for (const plan_call& call : stage.calls) {
    if (const dr_status s = bind_call(role, call, out.emplace_back(), error)) return s;
    role = DR_ROLE_BYTES;
  }
  return DR_OK;
}

dr_status bind_single(dr_role role, const plan_stage& stage, bound_stage& out, dr_error& error) {
  if (stage.calls.size() != 1) return fail(error, DR_E_ARGUMENT, "plan: %s= requires one name", stage.role.c_str());
  return bind_call(role, stage.calls[0], out, error);
}

// Binds the codecs that auto tries: in patches those that read a base, otherwise the others. On a tie the first is
// chosen.
dr_status bind_choices(dr_role role, double error_max, bool in_patches, std::vector<bound_stage>& out,
                       dr_error& error) {
  for (const codec_notes* notes : builtin_notes()) {
    const dr_codec& codec = *notes->codec;
    if (!notes->tries || codec.role != role || in_patches != ((codec.traits & DR_NEEDS_BASE) != 0)) continue;
    for (const codec_argument& a : notes->tries(error_max)) {
      plan_call call{codec.name, {}};
      if (a.name) call.arguments.push_back({a.name, print_number(a.value)});
      if (const dr_status s = bind_call(role, call, out.emplace_back(), error)) return s;
    }
  }
  return out.empty() ? fail(error, DR_E_UNSUPPORTED, "plan: %s=auto has no candidates in this build", role_name(role))
                     : DR_OK;
}

// No bytes codec may follow auto: it chooses by the size that a codec writes.
dr_status bind_auto(const plan_stage& stage, plan& out, dr_error& error) {
  const bound_word* bound = nullptr;
  if (stage.calls.size() != 1)
    return fail(error, DR_E_ARGUMENT, "plan: %s=auto does not support a bytes codec after it", stage.role.c_str());
  if (const dr_status s = bind_word(stage, out, bound, error)) return s;
  const bool index = stage.role == "index";
  if (!index) out.value_error = bound->value(0);
  auto& choices = index ? out.index_choices : out.value_choices;
  if (const dr_status s = bind_choices(index ? DR_ROLE_INDEX : DR_ROLE_VALUE, out.value_error, false, choices, error))
    return s;
  (index ? out.index : out.value) = {choices[0]};
  return DR_OK;
}

uint32_t whole(double number) { return static_cast<uint32_t>(number); }

// Sets what a word selects. Its parameters have the order of their declaration (plan/stage_words.cpp).
void set_word(std::string_view role, const bound_word& w, plan& out) {
  const std::string_view name = w.word->name;
  if (role == "regather") out.regather = name == "on";
  if (role == "bucket") out.flat = name == "flat";
  if (role == "merge") out.votes = name == "vote";
  if (role == "transform" && name == "lowrank") out.transform.rank = whole(w.value(0));
  if (role == "transform" && name == "dct")
    out.log2_tile = static_cast<uint32_t>(std::bit_width(whole(w.value(0)))) - 1;
  if (role != "exchange") return;
  out.exchange.kind = name == "gather"  ? exchange_kind::gather
                      : name == "owner" ? exchange_kind::owner
                      : name == "ring"  ? exchange_kind::ring
                                        : exchange_kind::hierarchy;
  if (out.exchange.kind == exchange_kind::hierarchy) out.exchange.inner = whole(w.value(0));
  out.exchange.parts = whole(w.values.back().number);
}

// Whether a stage is the default of its role.
bool says_default(const plan_stage& stage, const plan& p) {
  const bound_word* const w = p.word_of(stage.role);
  if (!w || w->word != first_word(stage.role) || stage.role == "index" || stage.role == "value") return false;
  for (size_t i = 0; i < w->word->param_count; ++i)
    if (!is_default(w->word->params[i], w->value(i))) return false;
  return true;
}

// A transform makes factors, not frames: all stages but feedback would have no effect.
dr_status check_transform(const std::vector<plan_stage>& stages, const plan& p, dr_error& error) {
  for (const plan_stage& stage : stages)
    if (stage.role != "transform" && stage.role != "feedback" && !says_default(stage, p))
      return fail(error, DR_E_UNSUPPORTED,
                  "plan: transform=lowrank supports no stage but feedback; leave out %s=", stage.role.c_str());
  if (p.keeps_feedback() && !p.feedback_rule().kind.plain)
    return fail(error, DR_E_UNSUPPORTED, "plan: transform=lowrank supports feedback=%s, not feedback=%s",
                plain_feedback(), p.feedback.codec->name);
  return DR_OK;
}

// Coefficients are those of one tensor, and what adds up.
dr_status check_tiles(const plan& p, dr_error& error) {
  const auto unsupported = [&](const char* what, const char* why) {
    return fail(error, DR_E_UNSUPPORTED, "plan: transform=dct does not support %s: %s", what, why);
  };
  const double size = p.word_of("transform")->value(0);
  if (!std::has_single_bit(whole(size)))
    return fail(error, DR_E_ARGUMENT, "plan: dct: size = %.0f is not a power of two", size);
  const std::string sparsify = std::string("sparsify=") + p.sparsify.codec->name;
  if (p.takes_base()) return unsupported(sparsify.c_str(), "it compares elements with those of a base");
  if (p.flat) return unsupported("bucket=flat", "tiles are those of one tensor");
  if (p.votes) return unsupported("merge=vote", "signs of coefficients are not signs of elements");
  if (p.exchange.kind != exchange_kind::gather || p.exchange.parts != 1)
    return unsupported("exchange=, but gather with parts=1", "ranges of elements are not ranges of coefficients");
  return DR_OK;
}

dr_status bind_stage(const plan_stage& stage, plan& out, dr_error& error) {
  const std::string& first = stage.calls[0].name;
  const bound_word* bound = nullptr;
  if ((stage.role == "index" || stage.role == "value") && first == "auto") return bind_auto(stage, out, error);
  if (stage.role == "feedback" && first == "none") return bind_word(stage, out, bound, error);
  if (stage.role == "sparsify") return bind_single(DR_ROLE_SPARSIFY, stage, out.sparsify, error);
  if (stage.role == "feedback") return bind_single(DR_ROLE_FEEDBACK, stage, out.feedback, error);
  if (stage.role == "index") return bind_list(DR_ROLE_INDEX, stage, out.index, error);
  if (stage.role == "value") return bind_list(DR_ROLE_VALUE, stage, out.value, error);
  if (stage.role == "order") return bind_list(DR_ROLE_ORDER, stage, out.order, error);
  if (!first_word(stage.role)) {
    const std::string near = nearest(stage.role, stage_roles), with = stage_with(stage.role);
    std::string known;
    for (const std::string_view role : stage_roles) (known += known.empty() ? "" : ", ") += role;
    if (const std::string& hint = near.empty() ? with : near; !hint.empty())
      return fail(error, DR_E_ARGUMENT, "plan: unknown stage '%s'; is it '%s'?", stage.role.c_str(), hint.c_str());
    return fail(error, DR_E_ARGUMENT, "plan: unknown stage '%s'; known: %s", stage.role.c_str(), known.c_str());
  }
  if (const dr_status s = bind_word(stage, out, bound, error)) return s;
  set_word(stage.role, *bound, out);
  return DR_OK;
}

// A vote is over all ranks and of all elements.
dr_status check_vote(const plan& p, dr_error& error) {
  if (!(p.index[0].codec->forms & 1u << DR_FORM_ALL) || !p.index_choices.empty())
    return fail(error, DR_E_ARGUMENT, "plan: merge=vote requires index=%s: an element that no rank sends would be +1",
                index_of_form(DR_FORM_ALL));
  if (p.exchange.kind != exchange_kind::gather && p.exchange.kind != exchange_kind::owner)
    return fail(error, DR_E_UNSUPPORTED, "plan: merge=vote with exchange=%s: its sums of some ranks have no vote",
                p.word_of("exchange")->word->name);
  return DR_OK;
}

// The names of the value codecs for patches.
std::string names_of_exact() {
  std::string text;
  for (const dr_codec* codec : builtin_codecs())
    if (codec->role == DR_ROLE_VALUE && (codec->traits & DR_EXACT) && !(codec->traits & DR_REORDERS))
      (text += text.empty() ? "" : ", ") += codec->name;
  return text;
}

// A patch is exact, and its receiver has the base: stages that this excludes are errors. auto chooses among the codecs
// that read the base.
dr_status bind_patch(plan& p, dr_error& error) {
  const auto unsupported = [&](const char* what) {
    return fail(error, DR_E_UNSUPPORTED, "plan: sparsify=%s does not support %s", p.sparsify.codec->name, what);
  };
  if (p.keeps_feedback()) return unsupported("feedback: a patch is exact");
  if (p.value_error != 0) return unsupported("value=auto with an error above 0: a patch is exact");
  const dr_codec &value = *p.value[0].codec, &index = *p.index[0].codec;
  if (!(value.traits & DR_EXACT) || (value.traits & DR_REORDERS))
    return fail(error, DR_E_UNSUPPORTED, "plan: sparsify=%s requires an exact value codec (%s), not %s",
                p.sparsify.codec->name, names_of_exact().c_str(), value.name);
  if (!(index.forms & 1u << DR_FORM_ALL) && (index.traits & DR_REPLACES_SUPPORT))
    return fail(error, DR_E_UNSUPPORTED, "plan: sparsify=%s does not support %s, which replaces the support",
                p.sparsify.codec->name, index.name);
  if (!p.regather) return unsupported("regather=off: each value goes to its own row");
  if ((index.forms & 1u << DR_FORM_ALL) && p.index.size() > 1)
    return unsupported((std::string("bytes codec behind index=") + index.name).c_str());
  if (p.flat) return unsupported("bucket=flat: each tensor has its own base");
  if (p.votes) return unsupported("merge=vote: a patch is not merged");
  if (p.exchange.kind != exchange_kind::gather || p.exchange.parts != 1)
    return unsupported("exchange=: a patch is not merged");
  if (!p.index_choices.empty())
    if (const dr_status s = bind_choices(DR_ROLE_INDEX, 0, true, p.index_choices, error)) return s;
  if (!p.value_choices.empty())
    if (const dr_status s = bind_choices(DR_ROLE_VALUE, 0, true, p.value_choices, error)) return s;
  return DR_OK;
}
dr_status bind_base(plan& p, dr_error& error) {
  if (p.patches()) return bind_patch(p, error);
  if (p.takes_base() && (p.flat || p.exchange.kind != exchange_kind::gather || p.exchange.parts != 1))
    return fail(error, DR_E_UNSUPPORTED, "plan: sparsify=%s takes no %s: each tensor has its own base",
                p.sparsify.codec->name, p.flat ? "bucket=flat" : "exchange=");
  for (const auto* list : {&p.index, &p.value})
    if ((*list)[0].codec->traits & DR_NEEDS_BASE)
      return fail(error, DR_E_ARGUMENT, "plan: %s codes against a base: it needs sparsify=%s", (*list)[0].codec->name,
                  sparsifier_with(&sparsifier::patches));
  return DR_OK;
}

dr_status bind_stages(std::vector<plan_stage> stages, std::shared_ptr<const plan>& out, dr_error& error) {
  expand_naive(stages);
  auto p = std::make_shared<plan>();
  for (const plan_stage& stage : stages)
    if (const dr_status s = bind_stage(stage, *p, error)) return s;
  if (p->transforms())
    if (const dr_status s = check_transform(stages, *p, error)) return s;
  const auto bind_default = [&](dr_role role, uint32_t id, bound_stage& to) {
    (void)bind_call(role, {find_codec(role, id)->name, {}}, to, error);
  };
  const auto fall_back = [&](dr_role role, auto& list) {
    if (list.empty()) bind_default(role, default_codec, list.emplace_back());
  };
  if (!p->sparsify.codec) bind_default(DR_ROLE_SPARSIFY, default_sparsifier, p->sparsify);
  fall_back(DR_ROLE_INDEX, p->index);
  fall_back(DR_ROLE_VALUE, p->value);
  if (const auto how = p->sparsifier(); how.how.check)
    if (const dr_status s = how.how.check(how.how.entry, how.params, error)) return s;

  if (p->has_tiles())
    if (const dr_status s = check_tiles(*p, error)) return s;

  const uint32_t index = p->index[0].codec->traits, value = p->value[0].codec->traits;
  if (const dr_status s = bind_base(*p, error)) return s;
  // A codec of the whole universe has no keys, so no blocks.
  if (!(p->index[0].codec->forms & 1u << DR_FORM_ALL)) p->block = p->sparsifier().block();
  if (p->votes)
    if (const dr_status s = check_vote(*p, error)) return s;
  if (p->block != 1 && p->index.size() == stages_max)
    return fail(error, DR_E_ARGUMENT, "plan: index= has %zu codecs; with blocks at most %u", p->index.size(),
                stages_max - 1);
  if ((index & DR_REPLACES_SUPPORT) && (index & DR_CARRIES_ORDER))
    return fail(error, DR_E_UNSUPPORTED,
                "plan: %s both replaces the support and carries the order: no sequence of stages supports both",
                p->index[0].codec->name);
  if (p->has_auto() && ((index & DR_REPLACES_SUPPORT) || (value & DR_REORDERS)))
    return fail(error, DR_E_UNSUPPORTED, "plan: auto is not supported beside %s, which %s",
                p->index_choices.empty() ? p->index[0].codec->name : p->value[0].codec->name,
                index & DR_REPLACES_SUPPORT ? "replaces the support" : "reorders the values");
  // The canonical text omits stages without effect.
  if (!(index & DR_REPLACES_SUPPORT)) p->regather = true;
  if ((value & DR_REORDERS) && !p->carries_order())
    fall_back(DR_ROLE_ORDER, p->order);
  else
    p->order.clear();
  list_stages(*p);
  p->text = p->stages.text();
  out = std::move(p);
  return DR_OK;
}

}  // namespace

dr_status bind_plan(std::string_view text, std::shared_ptr<const plan>& out, dr_error& error) {
  std::vector<plan_stage> stages;
  if (const dr_status s = read_plan(text, stages, error)) return s;
  return bind_stages(std::move(stages), out, error);
}

dr_status bind_with(const plan& of, std::string_view text, std::shared_ptr<const plan>& out, dr_error& error) {
  std::vector<plan_stage> stages, own;
  if (const dr_status s = parse_plan(text, stages, error)) return s;
  if (const dr_status s = parse_plan(of.text, own, error)) return s;
  for (plan_stage& stage : own)
    if (std::ranges::find(stages, stage.role, &plan_stage::role) == stages.end()) stages.push_back(std::move(stage));
  return bind_stages(std::move(stages), out, error);
}

}  // namespace dr
