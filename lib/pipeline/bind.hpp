// A plan: its text, bound to the codecs that it names.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/stage_list.hpp"
#include "feedback/state_layout.hpp"
#include "plan/listed_stages.hpp"
#include "plan/stage_words.hpp"
#include "sparsify/sparsifier.hpp"

namespace dr {

struct bound_stage {
  const dr_codec* codec = nullptr;
  std::vector<dr_value> values;  // one for each declared parameter

  double value(size_t param) const { return values[param].number; }
  dr_params params() const { return {sizeof(dr_params), values.data(), nullptr, 0, 0}; }
};

// A name that is not a codec.
struct bound_word {
  const dr_stage_word* word = nullptr;
  std::vector<dr_value> values;  // one for each declared parameter

  double value(size_t param) const { return values[param].number; }
};

// The stage exchange: which rank sends to which. Only lib/exchange and lib/sender read it.
enum class exchange_kind : uint8_t { gather, owner, ring, hierarchy };  // in the order of the words (plan/stage_words)
struct exchange_stage {
  exchange_kind kind = exchange_kind::gather;
  uint32_t parts = 1;
  uint32_t inner = 0;  // hierarchy: ranks of a host
};

// The stage transform: two factors of this rank that ranks all-reduce (PowerSGD), in place of frames. Only
// lib/exchange and capi read it.
struct transform_stage {
  uint32_t rank = 0;  // 0: there is no transform
};

struct plan {
  bound_stage sparsify, feedback;  // feedback.codec is nullptr without one
  std::vector<bound_stage> value, order, index;
  // index=auto, value=auto: the candidates, single codecs; `index` and `value` are then the first. A value codec is
  // chosen if its relative L2 error is at most value_error.
  std::vector<bound_stage> index_choices, value_choices;
  double value_error = 0;
  uint32_t block = 1;  // elements per index; 0: the sparsifier chooses it for every tensor
  bool regather = true, flat = false;
  bool votes = false;  // merge=vote: a merge is the sign of the sum
  exchange_stage exchange;
  transform_stage transform;
  uint32_t log2_tile = 0;         // transform=dct: frames have coefficients of tiles of this size; 0: they do not
  std::vector<bound_word> words;  // in the text
  listed_stages stages;           // for callers
  std::string text;               // canonical

  bound_sparsifier sparsifier() const { return {sparsifier_of(*sparsify.codec), sparsify.params()}; }
  // nullptr: the text has no word of the role.
  const bound_word* word_of(std::string_view role) const {
    const auto found = std::ranges::find_if(words, [&](const bound_word& w) { return role == w.word->role; });
    return found == words.end() ? nullptr : &*found;
  }
  bool has_auto() const { return !index_choices.empty() || !value_choices.empty(); }
  bool chooses() const { return has_auto() || block == 0; }
  bool transforms() const { return transform.rank != 0; }
  bool has_tiles() const { return log2_tile != 0; }
  bool patches() const { return sparsify.codec && sparsifier().how.patches; }
  // Whether its tensors have a base: weights that a patch is made of, or that a sparsifier looks at.
  bool takes_base() const { return patches() || (sparsify.codec && sparsifier().how.weighs); }
  bool keeps_feedback() const { return feedback.codec != nullptr; }
  // For plans with feedback only.
  bound_feedback feedback_rule() const { return {feedback_of(*feedback.codec), feedback.params()}; }
  bool keeps_residual() const { return keeps_feedback() && feedback_rule().kind.keeps_residual; }
  bool keeps_momentum() const { return keeps_feedback() && feedback_rule().kind.keeps_momentum; }
  bool carries_order() const {
    return block == 1 && (value[0].codec->traits & DR_REORDERS) && (index[0].codec->traits & DR_CARRIES_ORDER);
  }
};

// Sets `stages` of a bound plan (list_stages.cpp).
void list_stages(plan& p);

dr_status bind_plan(std::string_view text, std::shared_ptr<const plan>& out, dr_error& error);
// A plan in which the stages of a text replace its own.
dr_status bind_with(const plan& of, std::string_view text, std::shared_ptr<const plan>& out, dr_error& error);

// The plans that senders need besides a tensor's own (derive_plan.cpp). All of a tensor, exactly, with the same weight
// of the gradient and the same momentum; with feedback=dgc u is not masked, because all is sent. With merge=vote or
// transform= the plan itself: means and signs have different scales, and a transform sends small tensors dense.
dr_status bind_exact(const std::shared_ptr<const plan>& of, std::shared_ptr<const plan>& out, dr_error& error);
// All of all tensors, exactly, in one bucket.
dr_status bind_flat(std::shared_ptr<const plan>& out, dr_error& error);
// For rows that are selected already: only the codecs. An index codec that replaces the support is replaced by one for
// lists. There is no feedback for rows; UNSUPPORTED: votes, and feedback with a momentum, which concern all elements.
dr_status bind_rows(const plan& method, std::shared_ptr<const plan>& out, dr_error& error);
// For a sum that an owner encodes again: with a plain residual, because the sum includes the momentum; with merge=vote
// the sum is signs, exactly, one bit an element.
dr_status bind_sum(const std::shared_ptr<const plan>& method, std::shared_ptr<const plan>& out, dr_error& error);

// The norm to which feedback clips gradients (clip.cpp); 0: it does not clip.
double clip_of(const plan& p);

// Properties of a plan: DR_PLAN_* flags, and the DR_DTYPE_BIT set of supported tensors.
struct plan_traits {
  uint32_t flags, dtypes;
};
plan_traits traits_of(const plan& p);

}  // namespace dr
